"""What is wrong between settings that are right one by one, and what is worth a word although it can be rendered. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rallypoint.job.errors import Problem, show
from rallypoint.job.generator.pod import GENERATED_VOLUMES, NCCL_TOPOLOGY, mounts
from rallypoint.job.generator.settings import Settings
from rallypoint.job.quantity import quantity

__all__ = ["conflicts", "notes"]

#: Labels that are rendered from settings of their own.
_RENDERED_LABELS = {
    "kueue.x-k8s.io/queue-name": "queueName",
    "autopilot": "autopilotHealthChecks",
    "scheduling.x-k8s.io/pod-group": "podGroup",
}


def conflicts(settings: Settings) -> Iterator[Problem]:
    """Yield what cannot be rendered, or what Kubernetes would refuse for sure."""
    yield from _resources(settings)
    yield from _names(settings)
    yield from _scheduler(settings)
    yield from _topology(settings)
    yield from _elastic(settings)


def notes(settings: Settings) -> Iterator[str]:
    """Yield what is rendered as the chart does, and may surprise."""
    if settings.limit_gpus and settings.limit_gpus != settings.num_gpus:
        yield "limitGpusPerPod: Kubernetes rejects pods whose GPU limit differs from numGpusPerPod"
    for index, variable in enumerate(settings.variables):
        for source in variable.unused:
            yield f"environmentVariables[{index}].{source}: ignored; another source of {variable.name} takes precedence"
    names = [variable.name for variable in settings.variables]
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            yield f"environmentVariables: {name} is set {names.count(name)} times; the last value is used"
    if settings.insecure_token:
        yield "insecureToken: the agents have no secret; a process that reaches a pod and knows the job's name can join the job"
    if settings.elastic and settings.scheduler == "sakkara":
        yield "schedulerName: sakkara places the pods of an elastic job; the agents assign the ranks"


def _resources(settings: Settings) -> Iterator[Problem]:
    if settings.num_pods == 1 and settings.num_roce:
        yield _not("numRoceGdr", settings.num_roce, "0 unless numPods is more than 1")
    for key, limit, request, of in (
        ("limitCpusPerPod", settings.limit_cpus, settings.num_cpus, "numCpusPerPod"),
        ("limitMemoryPerPod", settings.limit_memory, settings.memory, "totalMemoryPerPod"),
    ):
        if limit is not None and quantity(limit) < quantity(request):
            yield _not(key, limit, f"at least {of} ({request})")


def _names(settings: Settings) -> Iterator[Problem]:
    yield from _once("customLabels", "key", (label.key for label in settings.custom_labels))
    yield from _once("volumes", "name", (volume.name for volume in settings.volumes))
    yield from _once("initContainers", "name", (container.name for container in settings.init_containers))
    for index, label in enumerate(settings.custom_labels):
        if label.key in _RENDERED_LABELS:
            yield _not(f"customLabels[{index}].key", label.key, f"a key that is not derived from {_RENDERED_LABELS[label.key]}")
    for index, volume in enumerate(settings.volumes):
        if volume.name in GENERATED_VOLUMES:
            yield _not(f"volumes[{index}].name", volume.name, "a name that no rendered volume uses")
    for index, container in enumerate(settings.init_containers):
        if container.name == "pytorch":
            yield _not(f"initContainers[{index}].name", container.name, "a name that differs from the job's container")
    paths = [mount["mountPath"] for mount in mounts(settings)]
    for path in dict.fromkeys(path for path in paths if paths.count(path) > 1):
        yield Problem(path="volumes", text=f"{show(path)} is mounted {paths.count(path)} times; expected one volume per path")


def _once(key: str, field: str, words: Iterable[str]) -> Iterator[Problem]:
    seen: dict[str, int] = {}
    for index, word in enumerate(words):
        if word in seen:
            yield _not(f"{key}[{index}].{field}", word, f"a value that differs from {key}[{seen[word]}]")
        seen.setdefault(word, index)


def _scheduler(settings: Settings) -> Iterator[Problem]:
    if settings.bypass_coscheduler and settings.scheduler_name not in (None, "default-scheduler"):
        told = "it implies schedulerName default-scheduler, which conflicts with the given one; remove one of them"
        yield _not("bypassCoscheduler", settings.bypass_coscheduler, told)


def _topology(settings: Settings) -> Iterator[Problem]:
    for index, variable in enumerate(settings.variables):
        if settings.topology_map and variable.name == NCCL_TOPOLOGY:
            yield _not(
                f"environmentVariables[{index}].name",
                variable.name,
                "another name, because topologyFileConfigMap sets this one",
            )


def _elastic(settings: Settings) -> Iterator[Problem]:
    if not settings.elastic:
        ours = (
            ("minPods", settings.min_pods),
            ("maxRestarts", settings.max_restarts),
            ("insecureToken", settings.insecure_token or None),
        )
        for key, value in ours:
            if value is not None:
                yield _not(key, value, "no value, because elastic is not set; set elastic: true, or omit this setting")
        return
    if settings.min_pods is not None and settings.min_pods > settings.num_pods:
        yield _not("minPods", settings.min_pods, f"at most numPods ({settings.num_pods})")
    if not (settings.main_program or "").strip():
        allowed = "no value, because mainProgram is not set; elastic needs it as the program of the workers"
        yield _not("elastic", settings.elastic, allowed)


def _not(path: str, value: object, allowed: str) -> Problem:
    return Problem(path=path, text=f"{show(value)} is not allowed; expected {allowed}")
