"""XID and ECC: the agent's reader finds the GPUs, reads their counters and waits for their errors.

No error is provoked on a real GPU: it would stand in the log of the machine. There the check proves that NVML takes every
call. That an XID becomes a verdict is proven with the stand-in, here and in tests/agent/test_gpus.py.
"""

from __future__ import annotations

import json
import sys
import time

from benchmarks.gpu.machine import Machine
from benchmarks.gpu.result import Result

__all__ = ["run"]

#: Run in a program of its own: in a dry run it is there that the stand-in is loaded.
_READER = """
import json, os, sys
from rallypoint.agent.node.health.gpus import NvmlError, open_library

nvml, found = open_library(), {}
if nvml is None:
    sys.exit("NVML cannot be loaded: libnvidia-ml.so.1 is missing, or no driver runs")
device = nvml.device("0")
for name, call in {
    "utilization": lambda: nvml.utilization(device),
    "uncorrected": lambda: nvml.uncorrected_errors(device),
    "registered": lambda: nvml.watch_xids(device) is None,
    "quiet": lambda: nvml.next_xid(0.5) is None,
}.items():
    try:
        found[name] = call()
    except NvmlError as error:
        found[name] = str(error)
found["gpus"] = nvml.count()
nvml.close()
print(json.dumps(found))
"""

_WATCHER = """
import json, sys, time
from rallypoint.agent.node.health.gpus import Gpus

gpus = Gpus(pace=0.05)
gpus.begin()
print("begun", flush=True)
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until and not gpus.faults(0):
    time.sleep(0.02)
gpus.close()
print(json.dumps([[str(fault), fault.hardware] for fault in gpus.faults(0)]))
"""


def run(machine: Machine) -> Result:
    """Read all that NVML has; in a dry run see an XID arrive."""
    machine.stand_in_gpu(utilization=12)
    log = machine.folder / "reader.log"
    code = machine.finish((sys.executable, "-c", _READER), log, 15.0)
    if code != 0:
        return Result(name="errors", passed=False, sentence=log.read_text().strip()[-300:])
    found = json.loads(log.read_text().splitlines()[-1])
    refused = {name: value for name, value in found.items() if isinstance(value, str)}
    faults = _provoked(machine) if machine.dry else []
    figures = {name: float(value) for name, value in found.items() if not isinstance(value, (str, bool))}
    passed = not refused and bool(found["quiet"]) and (not machine.dry or faults == [["GPU 0: " + _EXPECTED, True]])
    told = "; ".join(f"{name}: {value}" for name, value in refused.items())
    sentence = f"NVML refuses {told}" if told else "utilisation and ECC are read, XIDs are waited for"
    return Result(
        name="errors",
        passed=passed,
        figures=figures,
        sentence=sentence + (f"; an XID arrived as {faults}" if machine.dry else ""),
        stand_ins=("NVML",) if machine.dry else (),
    )


_EXPECTED = "XID 79 (GPU has fallen off the bus)"


def _provoked(machine: Machine) -> list[list[object]]:
    """Return what the agent's reader says of an XID that happens while it watches."""
    log = machine.folder / "watcher.log"
    process = machine.start((sys.executable, "-c", _WATCHER, "30"), log)
    seen = 0
    while process.poll() is None:
        # One event at a time is an event whenever the reader has begun.
        seen += 1
        machine.stand_in_gpu(utilization=12, xids=((0, 79),) * (1 if "begun" in log.read_text() and seen > 20 else 0))
        time.sleep(0.05)
    faults: list[list[object]] = json.loads(log.read_text().splitlines()[-1])
    return faults[:1]
