"""How descriptors are divided, and what children get."""

from __future__ import annotations

import json
import resource
import subprocess
import sys

import pytest

from rallypoint.agent.descriptors import Shares, shares

TELL = """
import json, resource, subprocess, sys
from rallypoint.agent.descriptors import as_started, raise_limit
limit = lambda: resource.getrlimit(resource.RLIMIT_NOFILE)
raise_limit(); raise_limit()
child = "import json, resource; print(json.dumps(resource.getrlimit(resource.RLIMIT_NOFILE)))"
told = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, preexec_fn=as_started())
print(json.dumps([limit(), json.loads(told.stdout)]))
"""


@pytest.mark.parametrize(("soft", "hard"), [(256, 4096), (1024, 1024)])
def test_the_soft_limit_is_raised_and_children_get_the_old_one(soft: int, hard: int) -> None:
    """As far as the hard limit allows; a worker that uses `select` must not get numbers that it cannot use."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    told = subprocess.run([sys.executable, "-c", TELL], capture_output=True, text=True, check=True, preexec_fn=limit)

    assert json.loads(told.stdout) == [[hard, hard], [soft, hard]]


@pytest.mark.parametrize("limit", [0, 16, 64, 256, 1024, 4096, 65_536, 1 << 30, resource.RLIM_INFINITY])
@pytest.mark.parametrize("grpc", [False, True])
@pytest.mark.parametrize("forwards", [False, True])
def test_a_reserve_is_left_free(limit: int, grpc: bool, forwards: bool) -> None:
    """Whatever is served; strangers get half of the requests at the most."""
    found = shares(limit, grpc=grpc, forwards=forwards)

    known = 131_072 if limit in (resource.RLIM_INFINITY, 1 << 30) else limit
    if known >= 256:
        assert found.requests + found.grpc + 2 * found.forwarded <= known - min(max(known // 64, 64), 1024)
    assert 4 <= found.strangers <= max(found.requests // 2, 4)
    assert (found.grpc > 0) == (grpc and known > 64)
    assert (found.forwarded > 0) == (forwards and known > 71)


def test_thousands_of_agents_fit_a_usual_hard_limit() -> None:
    """Four thousand agents behind one address, at the usual hard limit of a container or a login."""
    assert shares(65_536, grpc=True) == Shares(requests=21_504, strangers=8192, grpc=43_008, forwarded=0)
    assert shares(65_536, grpc=True).relayed >= 2 * 4000
    assert shares(1024) == Shares(requests=768, strangers=384, grpc=0, forwarded=0)
