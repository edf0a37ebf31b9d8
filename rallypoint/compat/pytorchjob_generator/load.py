"""Read settings: a document in, checked settings or one error with every problem out. Pure."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from rallypoint.compat.pytorchjob_generator.objects import GENERATED_VOLUMES, NCCL_TOPOLOGY, mounts
from rallypoint.compat.pytorchjob_generator.settings import Settings
from rallypoint.job.errors import JobError, Problem, Step, dotted, show
from rallypoint.job.quantity import quantity
from rallypoint.job.rules import REFUSED, rule_of

__all__ = ["SettingsError", "conflicts", "keys_of", "notes", "problems", "read_settings"]

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
        count = paths.count(path)
        yield Problem(path="volumes", text=f"{show(path)} is the mount path of {count} volumes; expected one volume per path")


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


#: What people write who come from a job file or from Kubernetes, where no letters lead to the chart's word.
_SYNONYMS = {
    "name": "jobName",
    "image": "containerImage",
    "nodes": "numPods",
    "replicas": "numPods",
    "env": "environmentVariables",
    "entrypoint": "mainProgram",
    "priorityclassname": "priority",
    "labels": "customLabels",
}


def keys_of(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the fields of a part by the keys that the file has."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def problems(error: ValidationError, root: type[BaseModel]) -> tuple[Problem, ...]:
    """Return every problem that pydantic found in settings of the kind `root`."""
    return tuple(_problem(details, root) for details in error.errors(include_url=False))


def _problem(details: ErrorDetails, root: type[BaseModel]) -> Problem:
    steps = tuple(details["loc"])
    if details["type"] == REFUSED:
        return _refused(details, steps)
    if details["type"] in {"extra_forbidden", "invalid_key"}:
        steps = (*steps[:-1], str(steps[-1]))
        similar = _most_similar(str(steps[-1]), _kind_at(steps[:-1], root))
        return Problem(path=dotted(steps), text=f"is not a known setting; the most similar setting is {similar!r}")
    allowed = _allowed(steps, root)
    if details["type"] == "missing":
        return Problem(path=dotted(steps), text=f"is missing; expected {allowed}")
    value = details["input"]
    return Problem(path=dotted(steps), text=f"{show(value)} is not allowed; expected {allowed}")


def _refused(details: ErrorDetails, steps: tuple[Step, ...]) -> Problem:
    context = details.get("ctx", {})
    path = (*steps, context["at"]) if context["at"] else steps
    # Where a part as a whole is refused for what it lacks at `at`, pydantic's input is the part and says nothing.
    value = details["input"] if context["value"] is None and not context["at"] else context["value"]
    return Problem(path=dotted(path), text=f"{show(value)} is not allowed; expected {context['allowed']}")


def _allowed(steps: tuple[Step, ...], root: type[BaseModel]) -> str:
    if isinstance(steps[-1], str):
        rule = rule_of(keys_of(_kind_at(steps[:-1], root))[steps[-1]].metadata)
        if rule is not None:
            return rule.allowed
    return f"a mapping with {', '.join(keys_of(_kind_at(steps, root)))}"


def _kind_at(steps: Iterable[Step], root: type[BaseModel]) -> type[BaseModel]:
    """Return the part that stands at `steps`, or of which there is a list."""
    kind = root
    for step in steps:
        if isinstance(step, str):
            kind = _part(keys_of(kind)[step].annotation)
    return kind


def _part(annotation: Any) -> type[BaseModel]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(_part(item) for item in typing.get_args(annotation) if item not in (None, type(None), ...))


def _most_similar(key: str, part: type[BaseModel]) -> str:
    known = {name.lower(): name for name in keys_of(part)}
    word = key.lower().replace("_", "").replace("-", "")
    close = known.get(word) or _SYNONYMS.get(word)
    if close in keys_of(part):
        return close
    (nearest,) = difflib.get_close_matches(word, known, n=1, cutoff=0.0)
    return known[nearest]


class SettingsError(JobError):
    """Settings cannot be read or cannot be rendered as they are written."""

    def __str__(self) -> str:
        header = (f"{self.source}: invalid settings:",) if self.source else ()
        return "\n".join((*header, *map(str, self.problems)))

    def with_source(self, source: str) -> SettingsError:
        """Return this error as one of the file `source`."""
        return SettingsError(self.problems, source)


def read_settings(document: Any) -> Settings:
    """Return the settings of a document as `read_document` gives it; raises `SettingsError`, which names every problem."""
    if not isinstance(document, Mapping):
        text = f"{show(document)} is not allowed; expected a mapping with jobName and containerImage"
        raise SettingsError([Problem(path="settings", text=text)])
    try:
        settings = Settings.model_validate(dict(document))
    except ValidationError as error:
        raise SettingsError(problems(error, Settings)) from None
    wrong = tuple(conflicts(settings))
    if wrong:
        raise SettingsError(wrong)
    return settings
