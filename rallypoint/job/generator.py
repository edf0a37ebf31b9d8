"""Former module of `rallypoint.compat.pytorchjob_generator`, for programs that still import it from here."""

from __future__ import annotations

from rallypoint.compat import pytorchjob_generator as _moved
from rallypoint.compat.pytorchjob_generator import *  # noqa: F403  the names of the new module

__all__ = _moved.__all__
