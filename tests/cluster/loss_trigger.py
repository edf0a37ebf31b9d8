"""Supervises one job as a triggerer does: the trigger of a deferred task, in an event loop of its own.

python -m tests.cluster.loss_trigger JOB NAMESPACE KUBECONFIG OWNER
"""

from __future__ import annotations

import asyncio
import sys


async def _run(name: str, namespace: str, kubeconfig: str, owner: str) -> None:
    from rallypoint.provider.claim import Claim
    from rallypoint.provider.trigger import ElasticTrainingTrigger

    claim = Claim(
        backend="kubernetes",
        home="",
        name=name,
        owner=owner,
        poll_interval=5.0,
        get_logs=False,
        deadline=None,
        on_kill_action="keep_job",
        namespace=namespace,
        kubeconfig=kubeconfig,
    )
    async for event in ElasticTrainingTrigger.of(claim).run():
        print(event.payload, flush=True)


if __name__ == "__main__":
    asyncio.run(_run(*sys.argv[1:]))
