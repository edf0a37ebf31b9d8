"""What clients, ledger and the Ray jobs of submissions agree on. Imports nothing: a Ray job that finds its ledger is quick."""

from __future__ import annotations

__all__ = ["LINE", "PATH"]

#: Begins the line with which the Ray job of a submission gives out the address and the key of the ledger.
LINE = "RALLYPOINT_LEDGER "

#: Where the ledger takes calls; the name of the method follows.
PATH = "/v1/"
