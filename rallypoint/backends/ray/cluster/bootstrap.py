"""The Ray job of a submission: it finds or creates the ledger and prints where the ledger answers."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray

from rallypoint.backends.ray.access import LEDGER
from rallypoint.backends.ray.calls import LINE
from rallypoint.backends.ray.cluster.ledger import Ledger
from rallypoint.backends.ray.cluster.priority import SETTING, match_priority
from rallypoint.backends.ray.placement import HEAD

__all__ = ["main", "open_ledger", "print_secret"]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the address and the key of the ledger of a namespace."""
    parser = argparse.ArgumentParser(prog="python -m rallypoint.backends.ray.cluster")
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--home", default="")
    args = parser.parse_args(argv)
    ray.init(address="auto", namespace=args.namespace, log_to_driver=False, logging_level="warning")
    found = open_ledger(args.namespace, args.home)
    sys.stdout.flush()
    print_secret(f"{LINE}{json.dumps(found)}\n")
    return 0


def print_secret(line: str) -> None:
    """Write a line to the standard output; if this is a file, only its owner can read the line, whatever its mode was.

    Ray keeps the output of a job in a file that every user of the head node can read and may have open already. So the line
    goes to a new file that takes the place of the old one.
    """
    out = sys.stdout.fileno()
    if not stat.S_ISREG(os.fstat(out).st_mode):
        sys.stdout.write(line)
        sys.stdout.flush()
        return
    path = Path(f"/proc/self/fd/{out}").readlink()
    earlier = path.read_bytes()
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(earlier + line.encode())
    fresh.replace(path)


def open_ledger(namespace: str, home: str) -> dict[str, str]:
    """Return where the ledger answers; creates it unless it lives."""
    for _ in range(5):
        actor: Any = (
            ray.remote(_Ledger)
            .options(
                name=LEDGER,
                get_if_exists=True,
                lifetime="detached",
                max_restarts=0,
                max_concurrency=64,
                num_cpus=0,
                resources={HEAD: 0.001},
            )
            .remote(home, namespace)
        )
        try:
            found: dict[str, str] = ray.get(actor.open.remote())
        except ray.exceptions.RayActorError:
            continue  # it ended meanwhile: its last job was deleted
        return found
    raise SystemExit("the ledger actor exited five times during its start; see the actor's log in the Ray dashboard")


class _Ledger(Ledger):
    """The ledger as an actor."""

    def __init__(self, home: str, namespace: str) -> None:
        super().__init__(home, namespace, ray.util.get_node_ip_address())
        match_priority(os.getppid(), os.environ.get(SETTING))
