"""Follows the log of a job as a trigger does: python -m tests.kube.log_follower URL FILES RANKS.

Once the second line of each of RANKS ranks has come, it prints how often another file could not be opened meanwhile, and which
of these lines came. With RANKS 1 rank 0 alone is read.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from pathlib import Path

from rallypoint.backends.kubernetes.access import Access
from rallypoint.backends.kubernetes.backend import KubernetesBackend
from rallypoint.provider.task_log import telling_logs


class _Log:
    """What is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, line: str, /, *values: object) -> None:
        self.lines += [
            text for text in (line % values if values else line).split("\n") if "late of" in text and text.startswith("[rank ")
        ]


async def _run(url: str, ranks: int) -> dict[str, object]:
    backend, log, failed = KubernetesBackend(Access(namespace="default", server=url)), _Log(), 0
    async with telling_logs(backend, "large", log, ranks=frozenset({0}) if ranks == 1 else None, bookmark=None) as task:
        while not task.done() and len(log.lines) < ranks:
            try:
                await asyncio.to_thread(Path("/proc/self/statm").read_text)
            except OSError:
                failed += 1
                if failed > 20:
                    break
            await asyncio.sleep(0.05)
    await backend.close()
    return {"failed": failed, "lines": sorted(log.lines)}


if __name__ == "__main__":
    address, files, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    print(json.dumps(asyncio.run(_run(address, number))), flush=True)
