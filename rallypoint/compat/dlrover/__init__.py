"""DLRover's job builder under its own import paths, for scripts that are not to be changed.

```python
from rallypoint.compat.dlrover import install

install()
from dlrover.python.unified.api.builder import DLJobBuilder
```
"""

from __future__ import annotations

from rallypoint.compat.dlrover.installing import install

__all__ = ["install"]
