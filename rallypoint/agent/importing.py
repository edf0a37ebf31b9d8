"""Imports without a look for garbage: there is none among modules, and what was imported is not looked at again."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

__all__ = ["uncollected"]


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Leave the collector alone while much is imported, and out of its sight what there is by then.

    An agent imports some hundred classes before it starts a worker: a sixth of that time went to looking for garbage among
    them. A collector that was switched off stays so.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was:
            gc.enable()
