"""`python -m rallypoint.backends.ray.cluster`: the entry point of the Ray job of a submission; with `run`, of a RayJob."""

from __future__ import annotations

import sys

from rallypoint.backends.ray.cluster import bootstrap

if __name__ == "__main__":
    if sys.argv[1:] == ["run"]:
        from rallypoint.backends.ray.cluster import driver

        sys.exit(driver.main())
    sys.exit(bootstrap.main())
