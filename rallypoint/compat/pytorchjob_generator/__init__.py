"""Settings of the pytorchjob-generator: read as its chart reads them, rendered as its objects or as an `ElasticJob`."""

from __future__ import annotations

from rallypoint.compat.pytorchjob_generator.convert import Converted, elastic_job
from rallypoint.compat.pytorchjob_generator.load import SettingsError, notes, read_settings
from rallypoint.compat.pytorchjob_generator.objects import appwrapper, pytorchjob
from rallypoint.compat.pytorchjob_generator.script import secret_object
from rallypoint.compat.pytorchjob_generator.settings import Settings

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
