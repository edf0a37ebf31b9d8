"""A zygote has no context of the device; a warm standby has one, made after the fork, and what that costs on the device."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.gpu.machine import Machine
from benchmarks.gpu.result import Result
from rallypoint.agent.linux import become_subreaper
from rallypoint.agent.workers.zygote.messages import PACKET, Order, frame, packet, receive, unpacked
from rallypoint.wire.python import run_module

__all__ = ["run"]

_PATIENCE = 90.0

#: What a standby becomes: it uses the device, in the context that it has already.
_USES_DEVICE = """
import torch
device = "cuda" if torch.cuda.is_available() else "cpu"
print(float((torch.ones(64, 64, device=device) @ torch.ones(64, 64, device=device)).sum()))
"""


def run(machine: Machine) -> Result:
    """Make a zygote and a warm standby, and look at what each of them holds of the device."""
    machine.stand_in_gpu()
    become_subreaper()
    before = _used(machine)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = run_module("rallypoint.agent.workers.zygote", str(theirs.fileno()), "", python=(sys.executable, "-u"))
    with subprocess.Popen(command, env=machine.environment(), pass_fds=[theirs.fileno()], start_new_session=True) as zygote:
        theirs.close()
        ours.settimeout(_PATIENCE)
        try:
            return _looked(machine, ours, zygote.pid, before)
        finally:
            ours.close()
            zygote.kill()


def _looked(machine: Machine, line: socket.socket, zygote: int, before: int) -> Result:
    ready = unpacked(line.recv(PACKET))
    if "ready" not in ready:
        return Result(name="memory", passed=False, sentence=f"the zygote is unfit: {ready.get('unfit')}")
    of_zygote = _used(machine) - before
    cuda_in_zygote = _uses_cuda(zygote)
    pid, standby, told = _standby(line)
    of_standby = _used(machine) - before - of_zygote
    cuda_in_standby = _uses_cuda(pid)
    answer = _become(machine, pid, standby)
    own = told["ready"]["own"]
    passed = (
        not cuda_in_zygote
        and of_zygote <= 0
        and not told["trouble"]
        and answer == "262144.0"
        and (machine.dry or (cuda_in_standby and of_standby > 0))
    )
    return Result(
        name="memory",
        passed=passed,
        figures={
            "zygote_device_mib": of_zygote / 2**20,
            "standby_device_mib": of_standby / 2**20,
            "standby_own_mib": own / 2**20,
            "zygote_uses_cuda": float(cuda_in_zygote),
        },
        sentence=(
            f"the zygote holds {of_zygote >> 20} MiB of the device and has {'' if cuda_in_zygote else 'not '}initialised CUDA;"
            f" a warm standby holds {of_standby >> 20} MiB of it and {own >> 20} MiB of memory of its own; as a worker it"
            f" computes {answer!r}" + (f"; trouble: {told['trouble']}" if told["trouble"] else "")
        ),
        stand_ins=("the CPU for the device",) if machine.dry else (),
    )


def _standby(line: socket.socket) -> tuple[int, socket.socket, dict[str, Any]]:
    """Return a warm standby of the first device: its number, its line, what it says of itself."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with theirs:
        socket.send_fds(line, [packet({"fork": True})], [theirs.fileno()])
        born = unpacked(line.recv(PACKET))
    ours.settimeout(_PATIENCE)
    ours.sendall(frame({"startup": "", "warm": True, "device": 0}))
    told, _ = receive(ours)
    if told is None:
        raise RuntimeError("the standby ended while it was warmed")
    return born["born"], ours, told


def _become(machine: Machine, pid: int, line: socket.socket) -> str:
    """Let a standby become a program that uses the device, and return what that prints."""
    order = Order(argv=(sys.executable, "-u", "-c", _USES_DEVICE), env=machine.environment(), streams=(1, 2))
    out, err = machine.folder / "standby.out", machine.folder / "standby.err"
    with out.open("wb") as stdout, err.open("wb") as stderr, line:
        socket.send_fds(line, [frame(order.to_json())], [stdout.fileno(), stderr.fileno()])
        receive(line)
        os.waitpid(pid, 0)
    return out.read_text().strip() or err.read_text()[-300:]


def _used(machine: Machine) -> int:
    """Return the bytes of the device that are used, by anybody; this program has a context of its own all the time."""
    if machine.dry:
        return 0
    import torch  # noqa: PLC0415  takes seconds, and a dry run has no use for it

    free, total = torch.cuda.mem_get_info()
    return total - free


def _uses_cuda(pid: int) -> bool:
    """Return whether a process has initialised CUDA, which opens the driver's device for memory; NVML alone does not."""
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # it was closed meanwhile
            if str(path.readlink()).startswith("/dev/nvidia-uvm"):
                return True
    return False
