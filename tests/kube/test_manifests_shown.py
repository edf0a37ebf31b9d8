"""Manifests as `rallypoint plan` shows them."""

from __future__ import annotations

from rallypoint.cli.plan import plan_lines
from tests.kube.manifests import blueprint_of


def test_a_plan_shows_every_manifest_by_kind_and_name():
    """A person finds each object by its heading; what is in it follows as YAML."""
    lines = [line.strip() for line in plan_lines(blueprint_of(nodes=2), complete=True)]

    for heading in ("ConfigMap rallypoint-digits", "Secret digits-xxxxxxxx-a1", "Pod digits-xxxxxxxx-a1-n1-1"):
        assert heading in lines
    assert lines.count("restartPolicy: Never") == 2


def test_a_plan_says_what_a_submission_draws():
    """The UID and the token are unknown before; a note explains the placeholder."""
    assert any("xxxxxxxx is a placeholder" in line for line in plan_lines(blueprint_of()))
