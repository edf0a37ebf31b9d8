"""`rallypoint-agent host`: what the supervisor of a job with roles starts for a group of instances."""

from __future__ import annotations

import argparse
import asyncio
import os

from rallypoint.agent.caches import cache_variables, home_is_writable
from rallypoint.agent.units.host import Host

__all__ = ["host"]


def host(args: argparse.Namespace) -> int:
    """Run the host of a group of instances to its end and return the exit code."""
    os.environ.update(cache_variables(os.environ, args.dir / "cache", writable=home_is_writable(os.environ)))

    async def serve() -> int:
        return await Host(plan=args.plan, record=args.record_file, folder=args.dir, uid=args.uid).run()

    return asyncio.run(serve())
