"""Settings of the pytorchjob-generator chart, and the rules of their values. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator
from typing_extensions import Self

from rallypoint.job.annotations import ANNOTATIONS
from rallypoint.job.duration import DURATION_FORMS, DurationError, parse_duration
from rallypoint.job.part import Model
from rallypoint.job.quantity import is_quantity, quantity
from rallypoint.job.rules import LIST, Rule, refusal
from rallypoint.job.values import RefusedError, read_argument, read_scalar, read_text, read_word

__all__ = [
    "COMMAND",
    "CPU",
    "FLAG",
    "HOST",
    "JOB_NAME",
    "KEY",
    "LABEL",
    "LABEL_KEY",
    "LABEL_NAME",
    "LABEL_VALUE",
    "LINE",
    "MEMORY",
    "MOUNT_PATH",
    "NULL_IS_EMPTY",
    "PART_NAME",
    "RESOURCE_NAME",
    "RESTART_POLICY",
    "SCHEDULER",
    "STORAGE",
    "TEXT",
    "VALUE",
    "VARIABLE",
    "WORD",
    "WORDS",
    "ClaimVolume",
    "CustomLabel",
    "GitSsh",
    "InitContainer",
    "Nvme",
    "PullSecret",
    "Settings",
    "Source",
    "Variable",
    "count",
    "nullable",
    "one_word_of",
    "period",
]

_LABEL = r"[a-z]([-a-z0-9]*[a-z0-9])?"
_NAME = r"[a-z]([-a-z0-9._]*[a-z0-9])?"
_PREFIX = r"[a-z]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_SCALED = r"[0-9]+(Ki|Mi|Gi|Ti|Pi|Ei|m|k|M|G|T|P|E)"
_RESOURCE = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-\w.]*[A-Za-z0-9])?"
#: What the controller parses as it is written; everything else is written anew.
_GO = re.compile(r"[0-9]+(s|m|h)", re.ASCII)

#: null and a list that is empty are the same: nothing was given.
NULL_IS_EMPTY = BeforeValidator(lambda value: () if value is None else value)


def _fits(pattern: str, text: str, most: int) -> bool:
    return len(text) <= most and re.fullmatch(pattern, text, re.ASCII) is not None


def _text(holds: Callable[[str], bool], allowed: str) -> Rule:
    def read(value: Any) -> str:
        text = read_text(value)
        if holds(text):
            return text
        raise RefusedError

    return Rule(kind="string", allowed=allowed, read=read, schema={"type": "string"})


def nullable(rule: Rule) -> Rule:
    """The same rule for a setting that null takes back."""
    return Rule(
        kind=rule.kind,
        allowed=f"{rule.allowed}, or null",
        read=lambda value: None if value is None else rule.read(value),
        schema={"anyOf": [dict(rule.schema), {"type": "null"}]},
    )


def count(least: int, most: int | None = None) -> Rule:
    """A whole number within bounds, both counted in."""
    bounds = f"of {least} or more" if most is None else f"from {least} to {most}"

    def read(value: Any) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and least <= value and (most is None or value <= most):
            return value
        raise RefusedError

    return Rule(
        kind="integer",
        allowed=f"a whole number {bounds}, without quotes",
        read=read,
        schema={"type": "integer", "minimum": least},
    )


def one_word_of(*words: str) -> Rule:
    """One of a few words."""
    return _text(lambda text: text in words, f"one of {', '.join(words)}")


def period(name: str) -> Rule:
    """The duration of the annotation `name`, kept as the text that AppWrapper's controller parses."""
    known = ANNOTATIONS[name]
    bounds = known.allowed.rpartition(", ")[2]

    def read(value: Any) -> str:
        try:
            seconds = parse_duration(value)
        except DurationError as error:
            raise RefusedError from error
        if not known.fits(seconds):
            raise RefusedError
        return value if isinstance(value, str) and _GO.fullmatch(value) else known.write(seconds)

    allowed = f"a duration such as {DURATION_FORMS}, {bounds}"
    return Rule(kind="duration", allowed=allowed, read=read, schema={"type": ["string", "number"]})


def _read_cpu(value: Any) -> str | int:
    if isinstance(value, int):
        return int(count(1).read(value))
    return _scaled(value)


def _scaled(value: Any) -> str:
    text = read_text(value)
    if _fits(_SCALED, text, 40) and quantity(text) > 0:
        return text
    raise RefusedError


def _read_flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise RefusedError


def _read_command(value: Any) -> tuple[str, ...]:
    words = value if isinstance(value, (list, tuple)) else ()
    if words:
        return tuple(read_argument(word) for word in words)
    raise RefusedError


def _read_label_key(value: Any) -> str:
    text = read_text(value)
    prefix, slash, name = text.rpartition("/")
    if _fits(_NAME, name, 63) and (not slash or _fits(_PREFIX, prefix, 253)):
        return text
    raise RefusedError


def _is_one_line(text: str) -> bool:
    """Return whether a shell reads one command line: a line break counts as none behind a backslash."""
    return "\n" not in re.sub(r"\\\n", "", text.strip("\n"))


def _read_host(value: Any) -> str:
    return read_word(read_argument(value))


def _plain(kind: str, allowed: str, read: Callable[[Any], Any], types: Iterable[str]) -> Rule:
    return Rule(kind=kind, allowed=allowed, read=read, schema={"type": list(types)})


_UNITS = "Ki, Mi, Gi, Ti, Pi, Ei, m, k, M, G, T, P or E"

LABEL = _text(
    lambda text: _fits(_LABEL, text, 63),
    "1 to 63 lower-case letters, digits and '-', beginning with a letter and not ending with '-'",
)
JOB_NAME = _text(
    lambda text: _fits(_LABEL, text, 50),
    "1 to 50 lower-case letters, digits and '-', beginning with a letter and not ending with '-'",
)
PART_NAME = _text(
    lambda text: _fits(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", text, 63),
    "1 to 63 lower-case letters, digits and '-', with a letter or a digit at both ends",
)
LABEL_KEY = _plain(
    "label key",
    "NAME or PREFIX/NAME: a name of at most 63 lower-case letters, digits, '-', '.' and '_', a prefix of at most 253 "
    "without '_', each beginning with a letter and ending with a letter or digit",
    _read_label_key,
    ("string",),
)
LABEL_VALUE = _text(
    lambda text: _fits(_NAME, text, 63),
    "a string of 1 to 63 lower-case letters, digits, '-', '.' and '_', with a letter first and a letter or digit last",
)
LABEL_NAME = _text(
    lambda text: _fits(r"([-a-z0-9.]+/)?[A-Za-z0-9]([-\w.]*[A-Za-z0-9])?", text, 63), "a label's name, such as gpu-pcie-bw"
)
CPU = _plain(
    "integer or quantity",
    f"a whole number of 1 or more, or a quantity above 0 with a unit such as 500m ({_UNITS})",
    _read_cpu,
    ("integer", "string"),
)
MEMORY = _plain(
    "quantity", f"a quantity above 0 with a unit such as 1Gi or 200M (a whole number and {_UNITS})", _scaled, ("string",)
)
STORAGE = _text(lambda text: is_quantity(text) and quantity(text) > 0, "a quantity above 0 as a string, such as 800Gi")
RESOURCE_NAME = _text(
    lambda text: not text or _fits(_RESOURCE, text, 317), "a resource's name with its domain, such as nvidia.com/roce_gdr"
)
FLAG = _plain("boolean", "true or false, without quotes", _read_flag, ("boolean",))
WORD = _text(lambda text: re.search(r"\s", text) is None and text != "", "a string without white space, not empty")
TEXT = _text(lambda _text: True, "a string")
LINE = _text(_is_one_line, r"a string with one command; a '\' at the end of a line continues the command on the next line")
COMMAND = _text(lambda text: bool(text.strip()), "a shell command as a string that is not empty; it may have several lines")
KEY = _text(lambda text: _fits(r"[-._a-zA-Z0-9]+", text, 253), "a key of letters, digits, '-', '_' and '.'")
VARIABLE = _text(
    lambda text: _fits(r"[-._a-zA-Z][-._a-zA-Z0-9]*", text, 1024),
    "a variable's name of letters, digits, '_', '-' and '.', not beginning with a digit",
)
VALUE = _plain("string, number or boolean", "a string, a number, true or false", read_scalar, ("string", "number", "boolean"))
MOUNT_PATH = _text(
    lambda text: text.startswith("/") and ":" not in text, "an absolute path without ':', such as /workspace/data"
)
HOST = _plain("string", "a host's name", _read_host, ("string", "number"))
WORDS = _plain(
    "list of strings", "a list of strings that is not empty, such as [sh, -c, 'whoami && ls -l']", _read_command, ("array",)
)
RESTART_POLICY = one_word_of("Never", "Always", "OnFailure")
SCHEDULER = one_word_of("sakkara", "scheduler-plugins-scheduler", "default-scheduler")


class CustomLabel(Model):
    """One label, for the AppWrapper, the PyTorchJob, its pods and the PodGroup where there is one."""

    key: Annotated[str, LABEL_KEY]
    value: Annotated[str, LABEL_VALUE]


class PullSecret(Model):
    """A secret for pulling images."""

    name: Annotated[str, WORD]


class KeyOf(Model):
    """One key of a secret or of a ConfigMap."""

    name: Annotated[str, WORD]
    key: Annotated[str, KEY]


class Variable(Model):
    """A variable: a literal, or a key of a secret or of a ConfigMap. The first that is given counts, in this order."""

    name: Annotated[str, VARIABLE]
    value: Annotated[str | None, nullable(VALUE)] = None
    secret: KeyOf | None = None
    configmap: KeyOf | None = None

    @model_validator(mode="after")
    def _has_a_source(self) -> Self:
        if self.value is None and self.secret is None and self.configmap is None:
            raise refusal("a value ('' for an empty value), or the name and key of a secret or configmap", at="value")
        return self

    @property
    def unused(self) -> tuple[str, ...]:
        """The sources that are given and do not count."""
        given = [name for name in ("value", "secret", "configmap") if getattr(self, name) is not None]
        return tuple(given[1:])


class _Reference(Model):
    name: Annotated[str, WORD]
    optional: Annotated[bool | None, nullable(FLAG)] = None


class Source(Model):
    """All keys of one secret or of one ConfigMap as variables: an item of Kubernetes' `envFrom`."""

    secret_ref: _Reference | None = Field(default=None, alias="secretRef")
    config_map_ref: _Reference | None = Field(default=None, alias="configMapRef")
    prefix: Annotated[str | None, nullable(TEXT)] = None

    @model_validator(mode="before")
    @classmethod
    def _not_as_in_the_example(cls, data: Any) -> Any:
        # The chart's own example has the name beside the reference, which Kubernetes refuses.
        if isinstance(data, Mapping) and "name" in data:
            raise refusal(
                "a name under secretRef or configMapRef, as in {secretRef: {name: NAME}}", at="name", value=data["name"]
            )
        return data

    @model_validator(mode="after")
    def _is_one_of_them(self) -> Self:
        if (self.secret_ref is None) == (self.config_map_ref is None):
            raise refusal("either secretRef or configMapRef, as in {secretRef: {name: NAME}}", value=self.document)
        return self

    @property
    def document(self) -> dict[str, Any]:
        """The item as Kubernetes has it."""
        return self.model_dump(by_alias=True, exclude_none=True)


class GitSsh(Model):
    """The key and the known hosts with which setup commands clone private repositories."""

    secret_name: Annotated[str, LABEL] = Field(alias="secretName")
    config_map_name: Annotated[str, LABEL] = Field(alias="configMapName")
    secret_mount_path: Annotated[str | None, nullable(MOUNT_PATH)] = Field(default=None, alias="secretMountPath")
    config_map_mount_path: Annotated[str | None, nullable(MOUNT_PATH)] = Field(default=None, alias="configMapMountPath")
    ssh_cmd: Annotated[str | None, nullable(TEXT)] = Field(default=None, alias="sshCmd")


class ClaimVolume(Model):
    """A persistent volume claim, and where it is mounted."""

    name: Annotated[str, PART_NAME]
    claim_name: Annotated[str, WORD] = Field(alias="claimName")
    mount_path: Annotated[str, MOUNT_PATH] = Field(alias="mountPath")


class Nvme(Model):
    """A volume on the node's own disks, made with the pod and gone with it."""

    storage: Annotated[str, STORAGE]
    mount_path: Annotated[str | None, nullable(MOUNT_PATH)] = Field(default=None, alias="mountPath")


class InitContainer(Model):
    """A container that runs to its end before the job's own."""

    name: Annotated[str, PART_NAME]
    image: Annotated[str, WORD]
    command: Annotated[tuple[str, ...], WORDS]


_PULL_POLICY = one_word_of("IfNotPresent", "Always", "Never")
_PRIORITY = one_word_of("default-priority", "low-priority", "high-priority")


class Settings(Model):
    """The settings of one job. null takes back what may be unset; `queue_name` None is no queue."""

    # Job metadata
    job_name: Annotated[str, JOB_NAME] = Field(alias="jobName")
    namespace: Annotated[str | None, nullable(LABEL)] = None
    queue_name: Annotated[str | None, nullable(LABEL)] = Field(default="default-queue", alias="queueName")
    priority: Annotated[str, _PRIORITY] = "default-priority"
    custom_labels: Annotated[tuple[CustomLabel, ...], LIST, NULL_IS_EMPTY] = Field(default=(), alias="customLabels")
    container_image: Annotated[str, WORD] = Field(alias="containerImage")
    image_pull_secrets: Annotated[tuple[PullSecret, ...], LIST, NULL_IS_EMPTY] = Field(default=(), alias="imagePullSecrets")
    image_pull_policy: Annotated[str | None, nullable(_PULL_POLICY)] = Field(default=None, alias="imagePullPolicy")

    # Resource requirements
    num_pods: Annotated[int, count(1)] = Field(default=1, alias="numPods")
    num_cpus: Annotated[str | int, CPU] = Field(default=1, alias="numCpusPerPod")
    num_gpus: Annotated[int, count(0)] = Field(default=0, alias="numGpusPerPod")
    memory: Annotated[str, MEMORY] = Field(default="1Gi", alias="totalMemoryPerPod")
    limit_cpus: Annotated[str | int | None, nullable(CPU)] = Field(default=None, alias="limitCpusPerPod")
    limit_gpus: Annotated[int | None, nullable(count(0))] = Field(default=None, alias="limitGpusPerPod")
    limit_memory: Annotated[str | None, nullable(MEMORY)] = Field(default=None, alias="limitMemoryPerPod")

    # Workload specification
    variables: Annotated[tuple[Variable, ...], LIST, NULL_IS_EMPTY] = Field(default=(), alias="environmentVariables")
    sources: Annotated[tuple[Source, ...], LIST, NULL_IS_EMPTY] = Field(default=(), alias="envFrom")
    git_ssh: GitSsh | None = Field(default=None, alias="sshGitCloneConfig")
    setup_commands: Annotated[tuple[Annotated[str, COMMAND], ...], LIST, NULL_IS_EMPTY] = Field(
        default=(), alias="setupCommands"
    )
    main_program: Annotated[str | None, nullable(LINE)] = Field(default=None, alias="mainProgram")
    volumes: Annotated[tuple[ClaimVolume, ...], LIST, NULL_IS_EMPTY] = ()

    # Advanced options
    roce_name: Annotated[str | None, nullable(RESOURCE_NAME)] = Field(default=None, alias="roceGdrResName")
    num_roce: Annotated[int, count(0)] = Field(default=0, alias="numRoceGdr")
    topology_map: Annotated[str | None, nullable(LABEL)] = Field(default=None, alias="topologyFileConfigMap")
    nccl_map: Annotated[str | None, nullable(LABEL)] = Field(default=None, alias="ncclGdrEnvConfigMap")
    network: Annotated[str | None, nullable(TEXT)] = Field(default=None, alias="multiNicNetworkName")
    disable_shared_memory: Annotated[bool, FLAG] = Field(default=False, alias="disableSharedMemory")
    nvme: Nvme | None = Field(default=None, alias="mountNVMe")
    init_containers: Annotated[tuple[InitContainer, ...], LIST, NULL_IS_EMPTY] = Field(default=(), alias="initContainers")
    health_checks: Annotated[tuple[Annotated[str, LABEL_NAME], ...], LIST, NULL_IS_EMPTY] = Field(
        default=(), alias="autopilotHealthChecks"
    )
    ignored_hosts: Annotated[tuple[Annotated[str, HOST], ...], LIST, NULL_IS_EMPTY] = Field(default=(), alias="hostIgnoreList")
    scheduler_name: Annotated[str | None, nullable(SCHEDULER)] = Field(default=None, alias="schedulerName")
    bypass_coscheduler: Annotated[bool | None, nullable(FLAG)] = Field(default=None, alias="bypassCoscheduler")
    service_account: Annotated[str | None, nullable(LABEL)] = Field(default=None, alias="serviceAccountName")

    # Fault tolerance
    admission_grace: Annotated[str | None, nullable(period("admissionGracePeriodDuration"))] = Field(
        default=None, alias="admissionGracePeriodDuration"
    )
    warmup_grace: Annotated[str | None, nullable(period("warmupGracePeriodDuration"))] = Field(
        default=None, alias="warmupGracePeriodDuration"
    )
    failure_grace: Annotated[str | None, nullable(period("failureGracePeriodDuration"))] = Field(
        default=None, alias="failureGracePeriodDuration"
    )
    retry_pause: Annotated[str | None, nullable(period("retryPausePeriodDuration"))] = Field(
        default=None, alias="retryPausePeriodDuration"
    )
    retry_limit: Annotated[int | None, nullable(count(0, 100))] = Field(default=None, alias="retryLimit")
    forceful_deletion_grace: Annotated[str | None, nullable(period("forcefulDeletionGracePeriodDuration"))] = Field(
        default=None, alias="forcefulDeletionGracePeriodDuration"
    )
    deletion_on_failure_grace: Annotated[str | None, nullable(period("deletionOnFailureGracePeriodDuration"))] = Field(
        default=None, alias="deletionOnFailureGracePeriodDuration"
    )
    success_ttl: Annotated[str | None, nullable(period("successTTLDuration"))] = Field(default=None, alias="successTTLDuration")
    restart_policy: Annotated[str, RESTART_POLICY] = Field(default="Never", alias="restartPolicy")
    termination_grace: Annotated[int | None, nullable(count(0))] = Field(default=None, alias="terminationGracePeriodSeconds")

    # Ours
    elastic: Annotated[bool, FLAG] = False
    min_pods: Annotated[int | None, nullable(count(1))] = Field(default=None, alias="minPods")
    max_restarts: Annotated[int | None, nullable(count(0))] = Field(default=None, alias="maxRestarts")
    insecure_token: Annotated[bool, FLAG] = Field(default=False, alias="insecureToken")
    pod_group: Annotated[bool, FLAG] = Field(default=False, alias="podGroup")

    @property
    def scheduler(self) -> str:
        """Name of the pods' scheduler; "" is the cluster's own choice."""
        return "default-scheduler" if self.bypass_coscheduler else self.scheduler_name or ""

    @property
    def least_pods(self) -> int:
        """MIN of an elastic job; all pods of another one."""
        return (self.min_pods or 1) if self.elastic else self.num_pods

    @property
    def workers_per_pod(self) -> int:
        """Processes on each pod: one for each GPU, or one."""
        return self.num_gpus or 1
