"""What a job promises wherever it runs holds on a real Ray cluster; `test_sample.py` has more of it."""

from __future__ import annotations

import pytest

from tests.cluster.test_behaviours import (  # noqa: F401  collected here once more, with the site of this package
    test_a_failing_script_spends_its_budgets,
    test_a_job_ends_well,
    test_a_lost_coordinator_stops_nobody,
    test_a_lost_node_is_replaced,
    test_another_supervisor_takes_over,
    test_it_is_suspended_resumed_and_deleted,
)

pytestmark = [pytest.mark.extended, pytest.mark.may_block("the hands of a test read /proc")]
