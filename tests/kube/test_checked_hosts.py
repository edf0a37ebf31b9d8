"""A machine that did not pass the node check: no pod of the attempt goes there again."""

from __future__ import annotations

import dataclasses

from rallypoint.backends.kubernetes.exclusion import bad_hosts
from rallypoint.backends.kubernetes.manifests.hosts import HOSTNAME, Exclusion, without_hosts
from rallypoint.wire.incident import merge_incidents
from tests.capabilities.node_check.test_rounds import BROKEN, CHECK, SLOW, play, start, told
from tests.cli.samples import begun


def test_the_host_of_a_node_at_fault_is_kept_off() -> None:
    """It is what the coordinator says of the agent that it sent away, joined with what a supervisor sees of its end."""
    status = told(play(start(), {2: BROKEN}))
    record = begun()
    record = dataclasses.replace(record, incidents=merge_incidents(record.incidents, status.incidents))

    assert bad_hosts(record) == {"host-2"}
    affinity = without_hosts({}, Exclusion(required=bad_hosts(record)))["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
    assert terms["nodeSelectorTerms"][0]["matchExpressions"] == [{"key": HOSTNAME, "operator": "NotIn", "values": ["host-2"]}]


def test_a_straggler_is_kept_off_where_it_is_excluded() -> None:
    """Where it is not, it trains."""
    for exclude in (True, False):
        status = told(play(start(check=dataclasses.replace(CHECK, exclude_straggler=exclude)), {1: SLOW}))
        record = dataclasses.replace(begun(), incidents=status.incidents)
        assert bad_hosts(record) == ({"host-1"} if exclude else set())
