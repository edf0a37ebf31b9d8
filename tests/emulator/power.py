"""The power switch of a machine of an emulated cluster, as `RALLYPOINT_TEST_NODE_KILL` calls one.

python -m tests.emulator.power URL NODE kill|return
"""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request

__all__ = ["main"]

_OPERATIONS = {"kill": ("lose_node", {"silent": True}), "return": ("restore_node", {})}


def main(argv: list[str] | None = None) -> int:
    """Switch a machine off or on; return 1 with the emulator's words where it does not know it."""
    url, node, action = sys.argv[1:] if argv is None else argv
    operation, more = _OPERATIONS[action]
    body = json.dumps({"name": node, **more}).encode()
    request = urllib.request.Request(
        f"{url}/emulator/{operation}", data=body, headers={"Content-Type": "application/json"}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=60):
            return 0
    except urllib.error.HTTPError as error:
        with error:
            print(error.read().decode(errors="replace"), file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
