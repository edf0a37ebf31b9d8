"""A sample of the behaviours on a real Ray cluster, for `make test`; all of them are in `make test-all`."""

from __future__ import annotations

import pytest

from tests.cluster.test_behaviours import (  # noqa: F401  collected here once more, with the site of this package
    test_a_killed_worker_is_started_again_in_place,
)
from tests.cluster.test_roles import test_a_driver_ends_while_servers_loop  # noqa: F401  as above

pytestmark = pytest.mark.may_block("the hands of a test read /proc")
