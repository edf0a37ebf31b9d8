"""Settings of the pytorchjob-generator: read as its chart reads them, rendered as its objects or as an `ElasticJob`."""

from __future__ import annotations

from rallypoint.job.generator.checks import notes
from rallypoint.job.generator.convert import Converted, elastic_job
from rallypoint.job.generator.load import SettingsError, read_settings
from rallypoint.job.generator.objects import appwrapper, pytorchjob
from rallypoint.job.generator.secret import secret_object
from rallypoint.job.generator.settings import Settings

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
