"""The zygote: `python -u -m rallypoint.agent.workers.zygote FD MODULE...`; its line to the agent is the socket FD.

A fork that got its command comes back here, to the outermost frame, and becomes the worker. What follows then is the end of any
Python: threads are waited for, exit handlers run, streams are flushed.
"""

from __future__ import annotations

import sys

from rallypoint.agent.workers.zygote.becoming import become
from rallypoint.agent.workers.zygote.messages import Order
from rallypoint.agent.workers.zygote.serving import main

if __name__ == "__main__":
    found = main(sys.argv[1:])
    sys.exit(become(found) if isinstance(found, Order) else found)
