"""What it costs a DAG file to name our operators, sensors and the decorator, over `airflow.sdk` alone.

Every process that parses a DAG file pays for it, and every task pays again. Each sample is a process of its own, ours and the
peer's in turn; CPU time is that of the process, and memory is resident. A first run of each, which compiles what was never
compiled, is not counted.

Cases:
    ours               CPU of importing them all, in ms (aim: 50 at the most)
    ours-memory        memory that they add, in MB (aim: 5 at the most)
    peer, peer-memory  the same of `KubernetesPodOperator`
    ratio              ours over the peer's, of CPU medians
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping

from benchmarks.peers import peer_environment
from benchmarks.report import Case, arguments, deliver, versions

__all__ = ["main"]

_MEASURE = """
import json, resource, sys, time
from pathlib import Path
from airflow.sdk import BaseHook, BaseOperator, BaseSensorOperator, dag, task
def memory():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
before, cpu, modules = memory(), time.process_time(), len(sys.modules)
{imports}
cpu = time.process_time() - cpu
print(json.dumps([1000 * cpu, (memory() - before) / 1e6, len(sys.modules) - modules]))
"""

OURS = """
from rallypoint.operators import *
from rallypoint.sensors import *
from rallypoint.decorators import *
"""

PEER = "from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator"


def main() -> None:
    """Measure both and print them."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--repeats", type=int, default=7, metavar="N", help="processes of each (7)")
    args = parser.parse_args()
    subjects: dict[str, tuple[str, Mapping[str, str]]] = {"ours": (OURS, os.environ)}
    peer = peer_environment()
    if peer is not None:
        subjects["peer"] = (PEER, peer)
    found: dict[str, list[list[float]]] = {name: [] for name in subjects}
    for _ in range(args.repeats + 1):
        for name, (imports, environment) in subjects.items():
            found[name].append(_sample(imports, environment))
    cases = [case for name, samples in found.items() for case in _cases(name, samples[1:])]
    if peer is not None:
        shares = (statistics.median(sample[0] for sample in found[name][1:]) for name in ("ours", "peer"))
        ours, theirs = shares
        cases.append(Case(name="ratio", command="ours / peer", samples=(ours / theirs,), unit=""))
    deliver("dag_import", cases, versions("apache-airflow"), args.json)


def _sample(imports: str, environment: Mapping[str, str]) -> list[float]:
    """Return CPU in ms, memory in MB and the number of modules of one process."""
    command = [sys.executable, "-c", _MEASURE.format(imports=imports)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    sample: list[float] = json.loads(done.stdout.splitlines()[-1])
    return sample


def _cases(name: str, samples: list[list[float]]) -> list[Case]:
    modules = {"modules": int(samples[0][2])}
    return [
        Case(name=name, command="import", samples=tuple(sample[0] for sample in samples), unit="ms", counts=modules),
        Case(name=f"{name}-memory", command="import", samples=tuple(sample[1] for sample in samples), unit="MB"),
    ]


if __name__ == "__main__":
    main()
