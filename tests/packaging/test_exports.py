from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Modules of ours that need a package which no extra brings: it comes with a provider that some Airflows have.
GUESTS = {"rallypoint.provider.lineage_facet": "openlineage.client"}
MODULES = sorted((ROOT / "rallypoint").rglob("*.py"))


def _name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _is_public(path: Path) -> bool:
    return not any(part.startswith("_") for part in path.relative_to(ROOT).parts)


def _order(name: str) -> tuple[int, str]:
    """Constants, then classes, then functions: the order in which ruff sorts `__all__`."""
    return (0 if name.isupper() else 1 if name[:1].isupper() else 2, name)


def test_exports_are_sorted_and_exist():
    """Each public module has an `__all__`, sorted, and every name in it exists."""
    wrong = [f"{_name(path)}: {why}" for path in MODULES if path.name != "__main__.py" for why in _problems(path)]

    assert wrong == []


def _problems(path: Path) -> Iterator[str]:
    try:
        module = importlib.import_module(_name(path))
    except ModuleNotFoundError as error:
        if GUESTS.get(_name(path), " ").partition(".")[0] != (error.name or "").partition(".")[0]:
            yield f"cannot be imported ({error})"
        return
    exported = getattr(module, "__all__", None)
    if exported is None:
        if _is_public(path):
            yield "has no __all__"
        return
    if list(exported) != sorted(set(exported), key=_order):
        yield "__all__ is not sorted"
    yield from (f"{name} does not exist" for name in exported if not hasattr(module, name))
