"""The file in which workers find the batch that they are to use: DLRover's, so that scripts made for it work unchanged.

```
{"dataloader": {"version", "dataloader_name", "last_batch_size", "batch_size", "num_workers", "pin_memory"},
 "optimizer": {"version", "optimizer_name", "learning_rate", "weight_decay"}, "restart": false}
```

DLROVER_PARAL_CONFIG_PATH says where it is. A script writes the batch that it begins with as `dataloader.batch_size`; who finds
a higher `version` takes the batch that stands there. DLRover's own loader writes its first batch over one that was tuned:
whoever tunes has to look, and to write again. The optimizer's part is left to the script.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rallypoint.wire.private import replace_file

__all__ = ["VARIABLE", "VARIABLES", "ParallelConfig", "read", "write"]

#: In every worker of a job whose batch is tuned: the path of the file, by our name and by DLRover's.
VARIABLE = "RALLYPOINT_PARALLEL_CONFIG"
VARIABLES = (VARIABLE, "DLROVER_PARAL_CONFIG_PATH")

_LOADER: dict[str, Any] = {
    "version": 0,
    "dataloader_name": "",
    "last_batch_size": 0,
    "batch_size": 0,
    "num_workers": 0,
    "pin_memory": 0,
}
_OPTIMIZER: dict[str, Any] = {"version": 0, "optimizer_name": "", "learning_rate": 0.0, "weight_decay": 0.0}


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """What of the file concerns us: the batch of the loader, 0 while no script has said so, and its version."""

    version: int = 0
    batch: int = 0


def read(path: Path) -> ParallelConfig | None:
    """Return what stands there; None where nothing can be read: a script may be writing just now."""
    loader = _content(path).get("dataloader")
    if not isinstance(loader, dict):
        return None
    version, batch = loader.get("version"), loader.get("batch_size")
    if type(version) is not int or type(batch) is not int or batch < 0:
        return None
    return ParallelConfig(version=version, batch=batch)


def write(path: Path, config: ParallelConfig) -> None:
    """Replace the file, and keep what a script wrote beside the batch; raises `OSError`."""
    known = _content(path)
    loader, optimizer = known.get("dataloader"), known.get("optimizer")
    before = loader if isinstance(loader, dict) else {}
    after = {**_LOADER, **before, "version": config.version, "batch_size": config.batch}
    if before.get("batch_size") != config.batch:
        after["last_batch_size"] = before.get("batch_size") or 0
    whole = {
        "dataloader": after,
        "optimizer": {**_OPTIMIZER, **(optimizer if isinstance(optimizer, dict) else {})},
        "restart": bool(known.get("restart", False)),
    }
    replace_file(path, json.dumps(whole, indent=4))


def _content(path: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        content = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(content, dict):
            return content
    return {}
