"""The node check's own probe: real products of matrices on the device, beside plain torch, and a group of NCCL alone."""

from __future__ import annotations

import json
import socket
import time

import torch

from benchmarks.gpu.machine import Machine, tail
from benchmarks.gpu.result import Result
from rallypoint.wire.python import run_module

__all__ = ["run"]

#: As in capabilities/node_check/probe.py: side of the matrices on each kind of device, and products of one measurement.
_SIDE, _DRY_SIDE, _PRODUCTS = 8192, 256, 4
_LIMIT = 35.0

#: The probe may measure so many times what plain torch does, in either direction, on a GPU.
_AGREES = 1.5


def run(machine: Machine) -> Result:
    """Start the probe as an agent does, as a world of one rank."""
    machine.stand_in_gpu()
    log = machine.folder / "probe.log"
    with socket.create_server(("127.0.0.1", 0)) as store:
        fd, port = store.fileno(), store.getsockname()[1]
        task = {"whole": False, "limit": 30.0, "fd": fd, "key": "gpu"}
        place = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RALLYPOINT_CHECK": json.dumps(task)}
        command = run_module("rallypoint.capabilities.node_check.probe")
        code = machine.finish(command, log, _LIMIT, keep=fd, **place)
    said = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    figures = next((one for one in said if "compute" in one), None)
    if code != 0 or figures is None:
        return Result(name="node check", passed=False, sentence=f"the probe ended with {code}: {tail(log, 3)}")
    side = _DRY_SIDE if machine.dry else _SIDE
    plain = _plain(machine, side)
    work = _PRODUCTS * 2 * side**3 / 1e12
    ratio = plain / figures["compute"]
    return Result(
        name="node check",
        passed=machine.dry or 1 / _AGREES <= ratio <= _AGREES,
        figures={
            "probe_tflops": work / figures["compute"],
            "torch_tflops": work / plain,
            "latency_us": figures["latency"] * 1e6,
        },
        ratio=ratio,
        sentence=(
            f"products of {side} by {side}: the probe {work / figures['compute']:.3g} TFLOP/s, plain torch {work / plain:.3g};"
            f" an all-reduce of one number takes {figures['latency'] * 1e6:.0f} µs"
        ),
        stand_ins=(f"float32 products of {side} by {side} on the CPU", "gloo for NCCL") if machine.dry else (),
    )


def _plain(machine: Machine, side: int) -> float:
    """Return the best seconds of as many products in plain torch."""
    torch.set_num_threads(1)
    kind = torch.float32 if machine.dry else torch.bfloat16
    left, right = (torch.ones((side, side), device=machine.device, dtype=kind) for _ in range(2))
    out = torch.empty_like(left)
    best = float("inf")
    for _ in range(20):
        began = time.perf_counter()
        for _ in range(_PRODUCTS):
            torch.mm(left, right, out=out)
        if not machine.dry:
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - began)
    return best
