"""DLRover's logger by the name under which scripts import it; it has no handler of its own."""

from __future__ import annotations

import logging

__all__ = ["default_logger"]

default_logger = logging.getLogger("rallypoint.compat.dlrover")
