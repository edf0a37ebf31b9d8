"""The size of long tests: a sample in `make test`, all of it in `make test-all`."""

from __future__ import annotations

import os

__all__ = ["WHOLE", "sized"]

#: Set by `python tools/check.py --all`. Read here: the environment of a test has no variable of ours.
WHOLE = os.environ.get("RALLYPOINT_TEST_WHOLE") == "1"


def sized(whole: int, sample: int) -> int:
    """Return `whole` in `make test-all` and `sample` in `make test`."""
    return whole if WHOLE else sample
