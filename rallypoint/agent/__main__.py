"""`python -m rallypoint.agent`."""

from __future__ import annotations

import sys

from rallypoint.agent.main import main

if __name__ == "__main__":
    sys.exit(main())
