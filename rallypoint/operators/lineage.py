"""`TellsLineage`: the methods that Airflow's OpenLineage provider looks for on an operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rallypoint.provider.lineage import Library

__all__ = ["TellsLineage", "open_library"]


class TellsLineage:
    """Has the summary of its job once that is over, and tells OpenLineage of it.

    The provider asks in the process that has finished the task, after Airflow has heard of its end, so that the summary need
    be nowhere else. It asks nobody who does not have it installed.
    """

    finished_with: Mapping[str, Any] = {}

    def get_openlineage_facets_on_complete(self, _ti: Any) -> Any:
        """Return an `OperatorLineage`, None where OpenLineage is not installed."""
        from rallypoint.provider.lineage import lineage_of  # noqa: PLC0415  a DAG file need not pay for it

        library = open_library()
        named = bool(getattr(self, "outlets", ()) or getattr(self, "inlets", ()))
        # The provider tells inlets and outlets only where an operator tells neither.
        return None if library is None else lineage_of(self.finished_with, library=library, with_output=not named)

    def get_openlineage_facets_on_failure(self, ti: Any) -> Any:
        """Return the same of a job that failed."""
        return self.get_openlineage_facets_on_complete(ti)


def open_library() -> Library | None:
    """Return the makers, None where OpenLineage's packages are not installed. Only they ask for this, and then they are."""
    try:
        from rallypoint.provider.lineage_facet import LIBRARY  # noqa: PLC0415  brings the packages
    except ImportError:
        return None
    return LIBRARY
