"""`python -m rallypoint.backends.ray.cluster`: the entry point of the Ray job of a submission; with `run`, of a RayJob."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

from rallypoint.backends.ray.cluster import place
from rallypoint.backends.ray.line import LINE

__all__ = ["main"]

#: Environment variable in which Ray gives its jobs the address of the cluster's GCS.
_CLUSTER = "RAY_ADDRESS"


def main(argv: Sequence[str]) -> int:
    """Print the address and the key of the ledger of a namespace, or run the driver of a RayJob."""
    if list(argv) == ["run"]:
        from rallypoint.backends.ray.cluster import driver  # noqa: PLC0415  it imports Ray

        return driver.main()
    parser = argparse.ArgumentParser(prog="python -m rallypoint.backends.ray.cluster")
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--home", default="")
    args = parser.parse_args(argv)
    found = place.find(place.home_of(args.home, args.namespace), args.namespace, os.environ.get(_CLUSTER, ""))
    if found is None:
        from rallypoint.backends.ray.cluster import bootstrap  # noqa: PLC0415  it imports Ray

        found = bootstrap.connect(args.namespace, args.home)
    sys.stdout.flush()
    place.print_secret(f"{LINE}{json.dumps(found)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
