from __future__ import annotations

import importlib
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("path", [path for path in MODULES if path.name != "__main__.py"], ids=_name)
def test_exports_are_sorted_and_exist(path):
    """`__all__` is the public face of a module: there (unless it is a package's empty door), sorted, and every name exists."""
    if guest := GUESTS.get(_name(path)):
        pytest.importorskip(guest)
    module = importlib.import_module(_name(path))
    exported = getattr(module, "__all__", None)
    if exported is None:
        assert not _is_public(path), "a public module says what it exports"
        return

    assert list(exported) == sorted(set(exported), key=_order)
    assert [name for name in exported if not hasattr(module, name)] == []
