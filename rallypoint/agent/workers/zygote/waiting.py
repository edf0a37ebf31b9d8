"""The life of a fork until it has a command: adopted by the agent, warmed, waiting on its own line."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import socket
from pathlib import Path
from typing import Any

from rallypoint.agent.workers.zygote.becoming import anticipate, prepare
from rallypoint.agent.workers.zygote.messages import Memory, Order, frame, receive
from rallypoint.agent.workers.zygote.warming import warm_cpu, warm_device, warm_group

__all__ = ["wait"]

_PR_SET_PDEATHSIG = 1
_ROLLUP = Path("/proc/self/smaps_rollup")


def wait(line: socket.socket, agent: int) -> Order:
    """Return the order, once there is one. Never returns when the agent is gone, or had no use for this process.

    The agent says "go" when it watches this process as its child; a session of its own before that would make it look like
    something that a worker left behind.
    """
    started, _ = receive(line)
    if started is None:
        os._exit(0)
    os.setsid()
    _die_with(agent)
    trouble = _warm(started)
    anticipated = _anticipated(started["startup"])
    memory = _memory()
    line.sendall(frame({"ready": {"own": memory.own, "share": memory.share}, "trouble": trouble}))
    while True:
        message, fds = receive(line)
        if message is None:
            os._exit(0)
        order = Order.from_json(message)
        try:
            if not anticipated:
                anticipate(order.startup)
            prepare(order, fds, line)
        except OSError as error:
            # The line may have been moved away under the numbers that the order wants; it is told on the same object.
            told = [error.errno or errno.EIO, error.strerror or str(error), error.filename]
            line.sendall(frame({"failed": told}))
            os._exit(127)
        except Exception as error:  # noqa: BLE001  whatever it is, another process can be what this one cannot
            line.sendall(frame({"unable": f"{type(error).__name__}: {error}"}))
            os._exit(127)
        with contextlib.suppress(OSError):
            line.sendall(frame({"taken": True}))
        line.close()
        return order


def _warm(started: dict[str, Any]) -> str:
    try:
        if started.get("warm"):
            warm_cpu()
            warm_group()
        if started.get("device") is not None:
            warm_device(int(started["device"]))
    except Exception as error:  # noqa: BLE001  one that is not warm can work all the same
        return f"{type(error).__name__}: {error}"
    return ""


def _anticipated(startup: str) -> bool:
    """Do what needs no order yet; what goes wrong in it is tried again, and told, when there is one."""
    try:
        anticipate(startup)
    except Exception:  # noqa: BLE001  see above
        return False
    return True


def _die_with(agent: int) -> None:
    """Be killed when the agent ends, as workers that it started itself are."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != agent:
            os._exit(128 + signal.SIGKILL)


def _memory() -> Memory:
    try:
        lines = _ROLLUP.read_text(encoding="ascii").splitlines()[1:]
    except (OSError, ValueError):
        return Memory()
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith("kB")}
    own = sizes.get("Private_Dirty", 0) + sizes.get("Private_Clean", 0)
    return Memory(own=own, share=sizes.get("Pss", 0))
