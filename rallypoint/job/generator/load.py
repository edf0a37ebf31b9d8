"""One door for settings: a document in, checked settings or one error with every problem out. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from rallypoint.job.errors import JobError, Problem, show
from rallypoint.job.generator.checks import conflicts
from rallypoint.job.generator.problems import problems
from rallypoint.job.generator.settings import Settings

__all__ = ["SettingsError", "read_settings"]


class SettingsError(JobError):
    """Settings cannot be read or cannot be rendered as they are written."""

    def __str__(self) -> str:
        header = (f"{self.source}: invalid settings:",) if self.source else ()
        return "\n".join((*header, *map(str, self.problems)))

    def with_source(self, source: str) -> SettingsError:
        """Return this error as one of the file `source`."""
        return SettingsError(self.problems, source)


def read_settings(document: Any) -> Settings:
    """Return the settings of a document as `read_document` gives it; raises `SettingsError`, which names every problem."""
    if not isinstance(document, Mapping):
        allowed = "a mapping with jobName and containerImage"
        raise SettingsError([Problem(path="settings", text=f"{show(document)} is not allowed; expected {allowed}")])
    try:
        settings = Settings.model_validate(dict(document))
    except ValidationError as error:
        raise SettingsError(problems(error, Settings)) from None
    wrong = tuple(conflicts(settings))
    if wrong:
        raise SettingsError(wrong)
    return settings
