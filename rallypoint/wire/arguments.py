"""The names of DLRover's arguments, for those who only pass them on: parsers of command lines are built without pydantic.

What each means, and what it may say, is in `job/arguments.py`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

__all__ = ["NAMESPACE", "NAMESPACE_ALLOWED", "PLATFORMS", "PREFIX", "RAY", "VARIABLES", "WORDS", "Word", "ambient", "unquoted"]

#: What the annotation of an argument may begin with.
PREFIX = "rallypoint.dev/"

#: What the environment variable of an argument begins with.
VARIABLES = "RALLYPOINT_"

RAY = "ray"

#: The words of `platform`, and what each means here.
PLATFORMS = {"pyk8s": "kubernetes", "k8s": "kubernetes", "kubernetes": "kubernetes", "local": "local", RAY: RAY}

#: Pattern of a namespace of Kubernetes, a DNS label (RFC 1123), and the same in words.
NAMESPACE = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
NAMESPACE_ALLOWED = "1 to 63 lower-case letters, digits and '-', with a letter or a digit at both ends"


@dataclass(frozen=True, kw_only=True)
class Word:
    """One argument of a command line.

    Attributes:
        name: with underscores.
        metavar: stands for its value; "" for a switch, which has none.
        text: what it does, for --help.
    """

    name: str
    metavar: str
    text: str

    @property
    def flag(self) -> str:
        """Its flag, spelled with hyphens."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return VARIABLES + self.name.upper()


_MASTER = (
    ("job_name", "NAME", "same as --name"),
    ("namespace", "NS", "Kubernetes namespace"),
    ("platform", "NAME", "backend of the job: kubernetes (also k8s, pyk8s), local or ray"),
    ("pending_timeout", "S", "seconds that nodes may stay pending; 0: no limit (default: 900)"),
    ("pending_fail_strategy", "N", "if nodes stay pending: -1 ignore, 0 warn, 1 or 2 fail (default: 1)"),
    ("service_type", "grpc|http", "protocol between agents and coordinator"),
    ("xpu_type", "nvidia|ascend", "vendor tool that measures device load: nvidia or ascend"),
    ("hang_detection", "0|1|2", "on a hang: 0 log only, 1 report, 2 restart workers (default: 1)"),
    ("hang_downtime", "MINUTES", "minutes without progress that count as a hang; 0: off (default: 30)"),
    ("pre_check_ops", "LIST", 'checks before training: [("module", "Class", enabled)]'),
    ("dynamic_failover_extension", "CLASS", "class to call after each failure, as MODULE::CLASS"),
)

_TRAINING = (
    ("precheck", "0|1|2", "node check before training: 0 off (default), 1 pairs, 2 also all nodes"),
    ("node_unit", "N", "use a multiple of N nodes in each round (default: 1)"),
    ("nnodes", "N|MIN:MAX", "number of nodes (default: 1)"),
    ("rdzv_conf", "KEY=VALUE,...", "rendezvous settings, such as join_timeout=600"),
    ("max_restarts", "N", "maximum worker restarts after faults; at least 1 (default: 3)"),
    ("relaunch_on_worker_failure", "N", "how often a failed node is replaced; at least 1 (default: 3)"),
    ("log_dir", "DIR", "folder of the worker logs"),
    ("auto_config", "", "start one worker per GPU or NPU of the node"),
    ("exclude_straggler", "", "replace nodes that are slow in the node check"),
    ("accelerator", "NAME", "accelerator: nvidia.com/gpu (default), ascend-npu or cpu"),
    ("numa_affinity", "", "bind workers to the CPUs near their GPU"),
    ("network_check", "", "same as --precheck 1"),
    ("comm_perf_test", "", "same as --precheck 2"),
    ("training_port", "PORT", "first port that workers try on ascend-npu (default: 60000)"),
)


def _all() -> Iterator[tuple[str, str, str]]:
    """Yield the arguments in the order of the document, those of optional capabilities in their places."""
    modules = importlib.import_module("rallypoint.capabilities").modules("arguments")
    added = {after: (name, metavar, text) for module in modules for after, name, metavar, text in module.ARGUMENTS}
    for argument in (*_MASTER, *_TRAINING):
        yield argument
        last = argument[0]
        while last in added:
            yield added[last]
            last = added[last][0]


#: By name, in the order of the document.
WORDS = {name: Word(name=name, metavar=metavar, text=text) for name, metavar, text in _all()}


def unquoted(text: str) -> str:
    """Return the text without one pair of equal quotes around all of it."""
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def ambient(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without what says where jobs are: that is settled before a job is read."""
    place = {WORDS[name].variable for name in ("namespace", "platform")}
    return {key: value for key, value in environ.items() if key not in place}
