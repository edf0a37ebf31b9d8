"""What a job with several roles promises wherever it runs holds on a real Ray cluster; `test_sample.py` has more of it."""

from __future__ import annotations

import pytest

from tests.cluster.test_roles import (  # noqa: F401  collected here once more, with the site of this package
    test_a_killed_instance_is_started_again_alone,
    test_a_lost_node_takes_its_whole_group,
    test_a_role_with_a_group_restarts_one_container,
)
from tests.cluster.test_roles_calls import (  # noqa: F401  as above
    test_roles_in_different_pods_call_each_other,
)

pytestmark = [pytest.mark.extended, pytest.mark.may_block("the hands of a test read /proc")]
