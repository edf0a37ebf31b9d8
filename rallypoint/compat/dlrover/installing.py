"""Puts modules of ours where scripts import DLRover's."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from rallypoint.compat.dlrover import builder, config, config_util, enums, log, workload_desc

__all__ = ["install"]

_UNIFIED = "dlrover.python.unified"
_BUILDER = f"{_UNIFIED}.api.builder"
_MODULES = {
    _BUILDER: builder,
    f"{_BUILDER}.base": builder,
    f"{_BUILDER}.rl": builder,
    f"{_UNIFIED}.common.config": config,
    f"{_UNIFIED}.common.enums": enums,
    f"{_UNIFIED}.common.workload_desc": workload_desc,
}
#: Modules that stay as they are where DLRover is installed.
_SMALL_MODULES = {
    "dlrover.python.common.log": log,
    f"{_UNIFIED}.util.config_util": config_util,
}


def install() -> None:
    """Make the modules of DLRover that scripts of its job builder import importable; calling it again changes nothing.

    Packages of an installed DLRover stay importable beside it; without one, empty packages stand for its folders.
    """
    modules = _MODULES | {path: module for path, module in _SMALL_MODULES.items() if not _is_installed(path)}
    for path in modules:
        _require_parents(path)
    for path, module in modules.items():
        sys.modules[path] = module
        parent, _, name = path.rpartition(".")
        if sys.modules[parent] not in _MODULES.values():
            setattr(sys.modules[parent], name, module)


def _require_parents(path: str) -> None:
    parts = path.split(".")[:-1]
    for end in range(1, len(parts) + 1):
        name = ".".join(parts[:end])
        if name in sys.modules or name in _MODULES:
            continue
        if _is_installed(name):
            importlib.import_module(name)
            continue
        package = ModuleType(name, "An empty package of rallypoint.compat.dlrover.")
        package.__path__ = []
        sys.modules[name] = package
        if end > 1:
            setattr(sys.modules[".".join(parts[: end - 1])], parts[end - 1], package)


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
