"""An emulated cluster in a process of its own: python -m tests.emulator --port 8001."""

from __future__ import annotations

import argparse
import asyncio
import signal
from pathlib import Path

from tests.emulator.controllers import NAMES
from tests.emulator.crds import DEFINITIONS
from tests.emulator.emulator import Emulator
from tests.emulator.options import NodeOptions, Options
from tests.emulator.running import kubeconfig


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.emulator", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="where to listen on 127.0.0.1; 0: any free port (default)")
    parser.add_argument("--rbac", action="store_true", help="enforce Roles, and refuse who brings no token")
    parser.add_argument("--kubeconfig", type=Path, help="write a kubeconfig of the administrator to this file")
    parser.add_argument(
        "--crds", type=Path, action="append", help="definitions to register (default: those under tests/data/crds)"
    )
    parser.add_argument("--nodes", type=int, default=3, help="how many nodes there are (default: 3)")
    parser.add_argument("--gpus", type=int, default=8, help="GPUs of each node (default: 8)")
    parser.add_argument("--no-kubelet", action="store_true", help="no nodes: pods are objects that the caller patches")
    parser.add_argument(
        "--speed", type=float, default=20.0, help="how much faster controllers wait than real ones (default: 20)"
    )
    parser.add_argument("--history", type=int, default=50_000, help="changes remembered for watches (default: 50000)")
    parser.add_argument("--controllers", default="", help=f"comma-separated: {', '.join(NAMES)}")
    return parser.parse_args()


async def serve(told: argparse.Namespace) -> None:
    nodes = () if told.no_kubelet else tuple(NodeOptions(name=f"node-{index}", gpus=told.gpus) for index in range(told.nodes))
    options = Options(
        port=told.port,
        rbac=told.rbac,
        crds=tuple(told.crds or (DEFINITIONS,)),
        nodes=nodes,
        speed=told.speed,
        history=told.history,
        controllers=tuple(name for name in told.controllers.split(",") if name),
    )
    emulator = Emulator(options)
    done = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, done.set)
    await emulator.start()
    try:
        if told.kubeconfig:
            told.kubeconfig.write_text(kubeconfig(emulator.url, emulator.access.admin_token))
        print(emulator.url, flush=True)
        await done.wait()
    finally:
        await emulator.close()


if __name__ == "__main__":
    asyncio.run(serve(arguments()))
