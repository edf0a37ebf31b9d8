"""The names of DLRover's arguments, for those who only pass them on: parsers of command lines are built without pydantic.

What each means, and what it may say, is in `job/arguments.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["NAMESPACE", "NAMESPACE_ALLOWED", "PLATFORMS", "PREFIX", "RAY", "VARIABLES", "WORDS", "Word", "ambient", "unquoted"]

#: What the annotation of an argument may begin with.
PREFIX = "rallypoint.dev/"

#: What the environment variable of an argument begins with.
VARIABLES = "RALLYPOINT_"

RAY = "ray"

#: The words of `platform`, and what each means here. Ray is one of them; nothing of ours runs there yet.
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
    ("job_name", "NAME", "name of the job; the same as --name"),
    ("namespace", "NS", "where in a cluster"),
    ("platform", "NAME", "what runs the job: pyk8s and k8s are kubernetes, or local; ray is not installed yet"),
    ("pending_timeout", "S", "how long a node may stay pending, 0 is off (900)"),
    ("pending_fail_strategy", "N", "after that: -1 no check, 0 a warning, 1 fail below MIN nodes, 2 fail (1)"),
    ("service_type", "grpc|http", "how agents speak with the coordinator"),
    ("xpu_type", "nvidia|ascend", "whose tools say how busy devices are (nvidia)"),
    ("hang_detection", "0|1|2", "a hang is 0 logged, 1 told, 2 answered by a restart (1)"),
    ("hang_downtime", "MINUTES", "so long without a sign of life is a hang, 0 is off (30)"),
    ("pre_check_ops", "LIST", '[("module", "Class", True), ...]: classes that are asked before training begins'),
    ("training_elastic_mode", "base|ucp", "ucp: a round waits until the last snapshot is in storage (base)"),
    ("dynamic_failover_extension", "CLASS", "MODULE::CLASS that is asked about each failure"),
)

_TRAINING = (
    ("precheck", "0|1|2", "nodes are checked before they train: 0 not at all, 1 in pairs, 2 and then all together (0)"),
    ("node_unit", "N", "the world is a multiple of so many nodes (1)"),
    ("nnodes", "N|MIN:MAX", "number of nodes (1)"),
    ("rdzv_conf", "KEY=VALUE,...", "join_timeout and others, in seconds"),
    ("max_restarts", "N", "how often workers are restarted after a fault, 1 or more (3)"),
    ("relaunch_on_worker_failure", "N", "how often a node is replaced, 1 or more (3)"),
    ("log_dir", "DIR", "where the workers' logs go"),
    ("auto_config", "", "as many workers on each node as it has devices"),
    ("auto_tunning", "", "the batch grows to what the memory holds, as it is measured"),
    ("exclude_straggler", "", "a node that is slow in the check is replaced"),
    ("save_at_breakpoint", "", "the last snapshot in memory is persisted when a worker died"),
    ("accelerator", "NAME", "what devices there are: nvidia.com/gpu, ascend-npu or cpu (nvidia.com/gpu)"),
    ("numa_affinity", "", "workers are bound to the CPUs near their GPU"),
    ("network_check", "", "the same as --precheck 1"),
    ("comm_perf_test", "", "the same as --precheck 2"),
    ("training_port", "PORT", "from here on nodes look for ports of the workers' own; ascend-npu alone (60000)"),
)

#: By name, in the order of the document.
WORDS = {name: Word(name=name, metavar=metavar, text=text) for name, metavar, text in (*_MASTER, *_TRAINING)}


def unquoted(text: str) -> str:
    """Return the text without one pair of equal quotes around all of it."""
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def ambient(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without what says where jobs are: that is settled before a job is read."""
    place = {WORDS[name].variable for name in ("namespace", "platform")}
    return {key: value for key, value in environ.items() if key not in place}
