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
    ("platform", "NAME", "backend of the job: kubernetes (also spelled k8s or pyk8s), local or ray"),
    ("pending_timeout", "S", "maximum time in seconds that nodes may stay pending; 0: no limit (default: 900)"),
    (
        "pending_fail_strategy",
        "N",
        (
            "reaction if nodes are still pending after --pending-timeout: -1 none, 0 a warning, "
            "1 the job fails if fewer than the minimum number of nodes run, 2 the job fails (default: 1)"
        ),
    ),
    (
        "service_type",
        "grpc|http",
        "protocol between agents and coordinator: grpc or http (default: grpc if grpcio is installed, otherwise http)",
    ),
    (
        "xpu_type",
        "nvidia|ascend",
        "vendor whose tool measures the load of the devices: nvidia or ascend (default: nvidia)",
    ),
    (
        "hang_detection",
        "0|1|2",
        "reaction to a hang: 0 a log line, 1 also an incident in the job status, 2 also a restart of the workers (default: 1)",
    ),
    ("hang_downtime", "MINUTES", "minutes without progress after which a job counts as hanging; 0: never (default: 30)"),
    (
        "pre_check_ops",
        "LIST",
        (
            "list of classes that check the job before the training, each as (module, class, enabled), such as "
            '[("my.checks", "Disk", True)]'
        ),
    ),
    ("dynamic_failover_extension", "CLASS", "class that Rallypoint calls after each failure of a worker, as MODULE::CLASS"),
)

_TRAINING = (
    (
        "precheck",
        "0|1|2",
        "node check before the training: 0 none (default), 1 tests pairs of nodes, 2 also tests all nodes together",
    ),
    ("node_unit", "N", "the number of training nodes is always a multiple of this number (default: 1)"),
    ("nnodes", "N|MIN:MAX", "number of nodes, or a range MIN:MAX (default: 1)"),
    ("rdzv_conf", "KEY=VALUE,...", "rendezvous settings as KEY=VALUE pairs with commas between them, such as join_timeout=600"),
    ("max_restarts", "N", "maximum number of worker restarts after faults, 1 or more (default: 3)"),
    ("relaunch_on_worker_failure", "N", "maximum number of replacements of each node, 1 or more (default: 3)"),
    ("log_dir", "DIR", "folder for the log files of the workers"),
    ("auto_config", "", "start one worker per GPU or NPU of the node"),
    ("exclude_straggler", "", "replace nodes that are slow in the node check (see --precheck)"),
    ("accelerator", "NAME", "kind of devices: nvidia.com/gpu (default), ascend-npu or cpu"),
    ("numa_affinity", "", "bind each worker to the CPUs near its GPU"),
    ("network_check", "", "same as --precheck 1"),
    ("comm_perf_test", "", "same as --precheck 2"),
    (
        "training_port",
        "PORT",
        "with --accelerator ascend-npu: port from which to search for free ports for the workers (default: 60000)",
    ),
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
