"""What was found where jobs are to run, before there is one. Pure."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Findings"]


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What is missing at a place, a sentence for a person each.

    Attributes:
        problems: no job can run while they are there.
        notes: what only some jobs need, and is missing; and what could not be found out.
    """

    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def fine(self) -> bool:
        """Whether a plain job can run."""
        return not self.problems

    def told(self, fine: str) -> str:
        """Return all of it as one text; `fine` is what to say where there is no problem."""
        return "; ".join((*(self.problems or (fine,)), *self.notes))
