"""What clients, ledger and the Ray jobs of submissions agree on. Imports little: a Ray job that finds its ledger is quick."""

from __future__ import annotations

import json

__all__ = ["LINE", "PATH", "health_page"]

#: Begins the line with which the Ray job of a submission gives out the address and the key of the ledger.
LINE = "RALLYPOINT_LEDGER "

#: Where the ledger takes calls; the name of the method follows.
PATH = "/v1/"


def health_page(url: str) -> bytes:
    """Return the health page of the ledger at a URL; the ledger proves its key with this page, which needs no key."""
    return json.dumps({"service": "rallypoint ledger", "url": url}).encode()
