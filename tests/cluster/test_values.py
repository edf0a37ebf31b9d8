"""The script of an elastic role and that of a simple role get the values that the job file says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rallypoint.supervision.record import Phase
from tests.cluster.roles_jobs import SIMPLE, TRAINER, roles_job
from tests.cluster.sites import Site

pytestmark = pytest.mark.may_block("the hands of a test read files and kubeconfigs")

SCRIPT = 'import json, os, sys; print(json.dumps([os.environ["PRICE"], os.environ["FLAG"], *sys.argv[1:]]), flush=True)'

ODD = "a$$b $$(POD_IP) $(POD_IP) $(FLAG) $$$$ $"


@pytest.mark.sample("emulator")
async def test_values_with_dollar_signs_are_not_changed(site: Site) -> None:
    """In the environment, the arguments and the setup commands, whatever Kubernetes makes of `$$` and `$(NAME)`."""
    words: dict[str, Any] = {
        "entrypoint": {"command": [site.python, "-c", SCRIPT]},
        "args": [ODD, "$(date)"],
        "env": {"FLAG": "x", "PRICE": ODD},
        "setup_commands": [f"export FLAG='{ODD}'"],
    }
    roles = {"trainer": {**TRAINER, **words, "nodes": 1}, "driver": {**SIMPLE, **words}}
    async with roles_job(site, roles) as job:
        record = await job.job.over()
        output = {role: await job.output(role) for role in roles}

    assert record.phase is Phase.SUCCEEDED
    for role, lines in output.items():
        told = [json.loads(line[line.index("[") :]) for line in lines if '["' in line]
        assert told == [[ODD, ODD, ODD, "$(date)"]], (role, lines)
