"""What a job with several roles promises wherever it runs holds on a real Ray cluster; `test_sample.py` has more of it."""

from __future__ import annotations

import pytest

from tests.cluster.test_roles import (  # noqa: F401  collected here once more, with the site of this package
    test_a_killed_instance_is_started_again_alone,
    test_a_killed_rank_of_an_elastic_role_disturbs_no_other_role,
    test_a_lost_node_takes_its_whole_group,
    test_a_role_that_fails_too_often_resets_the_job_and_then_fails_it,
    test_a_role_with_a_group_restarts_one_container,
    test_an_elastic_role_runs_on_the_machine_of_its_group,
    test_an_elastic_role_that_fails_resets_the_job,
    test_an_exception_is_in_the_record,
    test_another_supervisor_takes_over,
    test_each_driver_leaves_a_result,
    test_it_is_suspended_and_resumed,
    test_the_output_of_a_role_is_read_across_its_lives,
    test_two_instances_are_hit_at_once,
    test_two_roles_are_hit_at_once,
)
from tests.cluster.test_roles_calls import (  # noqa: F401  as above
    test_a_job_of_elastic_roles_alone_runs,
    test_roles_in_different_pods_call_each_other,
)

pytestmark = [pytest.mark.extended, pytest.mark.may_block("the hands of a test read /proc")]
