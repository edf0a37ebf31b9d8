"""Which streams of the workers go to files and to the console: torchrun's flags for them. Pure."""

from __future__ import annotations

import argparse
import os

from rallypoint.agent.errors import UsageError
from rallypoint.agent.workers.logs import STDERR, STDOUT, Streams

__all__ = ["copies_all", "parse_std", "read_streams"]


def read_streams(args: argparse.Namespace) -> Streams:
    """Return what --log-dir, --redirects, --tee and the filters say; raises `UsageError`.

    A --log-dir alone copies both streams there, as with dlrover-run; under torchrun it would stay empty.
    """
    redirects, redirects_of = parse_std(args.redirects, "--redirects")
    tee, tee_of = parse_std(args.tee, "--tee")
    if copies_all(args):
        tee = STDOUT | STDERR
    if args.log_dir == os.devnull:  # torchrun's way to keep no file
        redirects, redirects_of, tee, tee_of = 0, {}, 0, {}
    return Streams(
        redirects=redirects,
        redirects_of=redirects_of,
        tee=tee,
        tee_of=tee_of,
        console=_console(args.local_ranks_filter),
        duplicate_out=tuple(filter(None, args.duplicate_stdout_filters)),
        duplicate_err=tuple(filter(None, args.duplicate_stderr_filters)),
    )


def copies_all(args: argparse.Namespace) -> bool:
    """Return whether --log-dir is given and nothing says which streams go there."""
    return bool(args.log_dir) and args.log_dir != os.devnull and not args.given & {"redirects", "tee"}


def _console(text: str) -> frozenset[int] | None:
    if not text:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise UsageError(f"--local-ranks-filter {text}: not allowed; expected local ranks such as 0,1")
    return frozenset(map(int, parts))


def parse_std(text: str, flag: str) -> tuple[int, dict[int, int]]:
    """Return the streams for every rank, or by local rank, in `0|1|2|3` or `RANK:STD,...`; raises `UsageError`."""
    if text in ("0", "1", "2", "3"):
        return int(text), {}
    by_rank = {}
    for item in text.split(","):
        rank, _, std = item.strip().partition(":")
        if not rank.isdecimal() or std not in ("0", "1", "2", "3"):
            raise UsageError(
                f"{flag} {text}: not allowed; expected 0 (none), 1 (stdout), 2 (stderr), 3 (both), "
                "or such a number for each local rank, as in 0:1,1:3"
            )
        by_rank[int(rank)] = int(std)
    return 0, by_rank
