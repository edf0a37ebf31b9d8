"""Ends by an exception in every round: `crashing.py FOLDER WAY`; none of its ways needs torch.

same: the same exception each time; other: another text each time; hook: with an exception hook of its own; noted: recorded in
torch's error file by the script itself.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

FOLDER, WAY = Path(sys.argv[1]), sys.argv[2]
ROUND = int(os.environ["TORCHELASTIC_RESTART_COUNT"])


class Batch:
    """Has the address of the object in its text, which is another one in each process."""


def own_hook(kind: type[BaseException], error: BaseException, _trace: object) -> None:
    """Print one line of its own."""
    print(f"the script's own hook: {kind.__name__}: {error}", file=sys.stderr)


def train() -> None:
    """Fail."""
    try:
        dict[str, float]()["learning rate"]
    except KeyError as error:
        what = f"step {ROUND}" if WAY == "other" else f"the loss of {Batch()} is not a number"
        raise ValueError(what) from error


if WAY == "hook":
    sys.excepthook = own_hook
if WAY == "noted":
    error = {"message": {"message": "ValueError: noted", "extraInfo": {"py_callstack": "the script's own"}}}
    Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(json.dumps(error))
train()
