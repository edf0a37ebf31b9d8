"""Former place of `rallypoint.compat.pytorchjob_generator`; programs may go on importing it from here."""

from __future__ import annotations

from rallypoint.compat.pytorchjob_generator import (
    Converted,
    Settings,
    SettingsError,
    appwrapper,
    elastic_job,
    notes,
    pytorchjob,
    read_settings,
    secret_object,
)

__all__ = [
    "Converted",
    "Settings",
    "SettingsError",
    "appwrapper",
    "elastic_job",
    "notes",
    "pytorchjob",
    "read_settings",
    "secret_object",
]
