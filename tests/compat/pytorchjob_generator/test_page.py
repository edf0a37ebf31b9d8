"""docs/guides/pytorchjob-generator.md and its examples: complete, and true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rallypoint.compat.pytorchjob_generator import Settings, appwrapper, elastic_job, read_settings
from rallypoint.compat.pytorchjob_generator.load import keys_of
from rallypoint.job.document import read_document
from tests.compat.pytorchjob_generator.samples import job
from tests.crds import problems

DOCS = Path(__file__).parents[3] / "docs"


def test_the_page_tells_of_every_setting_once():
    """In the order in which they are read, none of which is missing or made up."""
    page = (DOCS / "guides" / "pytorchjob-generator.md").read_text()
    section = page.partition("## Every setting")[2].partition("\n## ")[0]

    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == list(keys_of(Settings))


@pytest.mark.parametrize("name", [pytest.param(name, id=name) for name in ("settings.yaml", "elastic-settings.yaml")])
def test_the_examples_can_be_rendered_both_ways(name):
    """Kubernetes would take the objects, and the job is one."""
    settings = read_settings(read_document(DOCS / "examples" / name))
    document = appwrapper(settings)

    assert problems(document) + problems(job(document)) == []
    assert elastic_job(settings).document["name"] == "digits"
