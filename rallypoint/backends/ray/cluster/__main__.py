"""`python -m rallypoint.backends.ray.cluster`: the entry point of the Ray job of a submission."""

from __future__ import annotations

import sys

from rallypoint.backends.ray.cluster.bootstrap import main

if __name__ == "__main__":
    sys.exit(main())
