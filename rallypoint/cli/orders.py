"""`rallypoint pause`, `save` and `stop`, and `resume` of a paused job: commands to all workers at a step boundary."""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING

from rallypoint.cli.options import Commands, add_job_command
from rallypoint.wire.bounds import read_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rallypoint.backends.contract import Backend
    from rallypoint.wire.status import JobStatus
    from rallypoint.wire.wish import RankAnswer, Wish, WishStatus

__all__ = ["add", "add_timeout", "ask", "run", "tell"]

_TIMEOUT = 60.0

_PAUSE = """\
Pause all workers of a running job after the same step, until the job is
resumed. The worker processes stay alive and keep their memory and devices.
Timeouts and leases continue to run during the pause, and can expire. A job that
is paused for longer than health.hang_downtime counts as hanging.

The training script must use rallypoint.training.State, or call
rallypoint.training.stop_requested once per step. If the script does neither,
the workers cannot stop after the same step, and the command prints an error.
"""

_SAVE = """\
Save a checkpoint on all workers of a running job after the same step. After the
save, the workers continue, or stay paused if the job is paused. The training
script must define a function that saves a checkpoint, and register this
function with rallypoint.training.State.on_save.
"""

_STOP = """\
Save a checkpoint on all workers of a running job after the same step, then end
the job as succeeded. If the training script does not use
rallypoint.training.State, each worker receives SIGTERM and must exit within
recovery.stop_grace_period. Such a script can call
rallypoint.training.stop_requested to detect the request.
"""

#: Past participle of each command, for messages.
_DONE = {"pause": "paused", "resume": "resumed", "save": "saved", "stop": "stopped"}


def add(commands: Commands) -> None:
    """Add the three commands."""
    for name, summary, description in (
        ("pause", "pause the workers of a job until the job is resumed", _PAUSE),
        ("save", "save a checkpoint on all workers of a running job", _SAVE),
        ("stop", "save a checkpoint, then end the job as succeeded", _STOP),
    ):
        parser = add_job_command(commands, name, summary, description)
        parser.add_argument("name", metavar="NAME", help="name of the job")
        add_timeout(parser)
        parser.set_defaults(run=run, verb=name)


def add_timeout(parser: argparse.ArgumentParser) -> None:
    """Add the option for the time to wait for replies."""
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=_seconds,
        default=_TIMEOUT,
        help=f"maximum time in seconds to wait for the replies of the workers (default: {_TIMEOUT:g})",
    )


def _seconds(text: str) -> float:
    seconds = read_seconds(text)
    if seconds is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; expected a timeout in seconds, 0 or more")
    return seconds


def run(args: argparse.Namespace) -> int:
    """Send the command, wait, and print the reply of each rank; return 0 if all ranks executed it."""
    lines, done = asyncio.run(_run(args))
    print("\n".join(lines))
    return 0 if done else 1


async def _run(args: argparse.Namespace) -> tuple[list[str], bool]:
    async with args.services.backend(args.where) as backend:
        return await ask(backend, args.name, args.verb, timeout=args.timeout)


async def ask(backend: Backend, name: str, verb: str, *, timeout: float) -> tuple[list[str], bool]:
    """Send the command to all workers, wait for their replies, and return the text and whether all executed it."""
    from rallypoint.backends.worker_commands import await_answers, request_wish  # noqa: PLC0415  --help does without
    from rallypoint.wire.line import Verb  # noqa: PLC0415

    wish = await request_wish(backend, name, Verb(verb))
    assert wish is not None
    heard = await await_answers(backend, name, wish, timeout=timeout)
    lines, done = tell(name, wish, heard.status)
    if not heard.settled:
        lines.append(
            f"Some ranks have not answered within {timeout:g} s; the request stays active until attempt {wish.attempt} ends"
        )
    return lines, done


def tell(name: str, wish: Wish, status: JobStatus | None) -> tuple[list[str], bool]:
    """Return the replies as text, and whether all ranks executed the command."""
    word = _DONE[wish.verb.value]
    if status is not None and status.verdict is not None:
        verdict = status.verdict
        return [f"Job {name} has ended: {verdict.message}"], wish.verb.value == "stop" and verdict.outcome.value == "succeeded"
    from rallypoint.wire.sections import value_of  # noqa: PLC0415  --help does without

    told: WishStatus | None = None if status is None else value_of(status, "wish")
    if status is None or told is None or told.number != wish.number:
        return [f"Job {name}: the coordinator has not received the request yet"], False
    done = [answer for answer in told.ranks if answer.done]
    lines = [f"Job {name}: {len(done)} of {len(told.ranks)} ranks {word}{_at(done)}"]
    for member in sorted(status.world, key=lambda member: member.node):
        ranks = range(member.first_rank, member.first_rank + member.local_world_size)
        lines += _others(member.node, [answer for answer in told.ranks if answer.rank in ranks and not answer.done])
    return lines, len(done) == len(told.ranks)


def _at(done: Sequence[RankAnswer]) -> str:
    steps = sorted({answer.step for answer in done if answer.step is not None})
    if not steps:
        return ""
    return f" at step {steps[0]}" if len(steps) == 1 else f" at steps {steps[0]} to {steps[-1]}"


def _others(node: int, answers: Sequence[RankAnswer]) -> list[str]:
    """Return a line for each reason on one node."""
    reasons: dict[str, list[int]] = {}
    for answer in answers:
        reasons.setdefault(answer.error or "no answer yet", []).append(answer.rank)
    return [f"  node {node}, {_ranks(ranks)}: {reason}" for reason, ranks in reasons.items()]


def _ranks(ranks: Sequence[int]) -> str:
    words = ", ".join(map(str, ranks))
    return f"rank {words}" if len(ranks) == 1 else f"ranks {words}"
