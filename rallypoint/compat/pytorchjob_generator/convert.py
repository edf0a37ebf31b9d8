"""The same settings as the document of an `ElasticJob`, and a word on each that means something else there. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from rallypoint.compat.pytorchjob_generator import objects
from rallypoint.compat.pytorchjob_generator.load import SettingsError, notes
from rallypoint.compat.pytorchjob_generator.objects import policies
from rallypoint.compat.pytorchjob_generator.script import program
from rallypoint.compat.pytorchjob_generator.settings import Settings
from rallypoint.job.annotations import ANNOTATIONS
from rallypoint.job.errors import Problem, show
from rallypoint.job.model import ElasticJob
from rallypoint.job.quantity import quantity
from rallypoint.job.rules import VARIABLE
from rallypoint.job.values import RefusedError

__all__ = ["Converted", "elastic_job", "entry"]

_NOTHING = "a script with its arguments, or an empty value if setupCommands are set"
_OPERATORS = frozenset(";&|<>()\n")
_EXPANDED = frozenset("$`*?[~{#!")


def entry(settings: Settings) -> dict[str, Any]:
    """Return the fields of a role that say what runs; raises `SettingsError` for what only a shell of torchrun's could run."""
    text = re.sub(r"\\\n", " ", program(settings))
    setup = [command.rstrip("\n") for command in settings.setup_commands]
    if not text:
        return {"entrypoint": ["sh", "-e", "-c", "\n".join(setup)]} if setup else _refuse(settings, _NOTHING)
    return {**_program(settings, text), "setup_commands": setup, "nproc_per_node": settings.workers_per_pod}


def _program(settings: Settings, text: str) -> dict[str, Any]:
    active = _active(text)
    if active & _OPERATORS:
        return _refuse(settings, "one program with its arguments, without ; & | < > and ( )")
    try:
        words = shlex.split(text)
    except ValueError as error:
        return _refuse(settings, f"a command line with balanced quotes ({str(error).lower()})")
    if words[0].startswith("-") and words[0] not in {"-m", "--module"}:
        return _refuse(settings, "a script or -m MODULE with its arguments; set torchrun's flags as fields of the job")
    if active & _EXPANDED:
        return {"entrypoint": ["sh", "-c", f"exec python -u {text}"]}
    if words[0] in {"-m", "--module"}:
        return {"entrypoint": " ".join(("-m", *words[1:2])), "args": words[2:]}
    script, *args = words
    return {"entrypoint": {"script": script} if re.search(r"\s", script) else script, "args": args}


def _refuse(settings: Settings, allowed: str) -> dict[str, Any]:
    raise SettingsError([Problem(path="mainProgram", text=f"{show(settings.main_program)} is not allowed; expected {allowed}")])


def _active(text: str) -> frozenset[str]:
    """Return the characters that a shell would do something about: those behind a backslash or between quotes are inert."""
    active, quote, escaped = set(), "", False
    for char in text:
        if escaped:
            escaped = False
        elif char == "\\" and quote != "'":
            escaped = True
        elif quote:
            quote = "" if char == quote else quote
            active |= {char} & {"$", "`"} if quote == '"' else set()
        elif char in "'\"":
            quote = char
        else:
            active.add(char)
    return frozenset(active)


_MI = 1024**2


@dataclass(frozen=True, kw_only=True)
class Converted:
    """A job's document, short as a person would write it; each of `notes` names a setting and what became of it."""

    document: dict[str, Any]
    notes: tuple[str, ...]


def elastic_job(settings: Settings) -> Converted:
    """Return the job; raises `SettingsError` for settings that no job file can hold."""
    wrong = tuple(_taken(settings))
    if wrong:
        raise SettingsError(wrong)
    fields = {
        "name": settings.job_name,
        "profile": "ladder" if settings.elastic else "appwrapper",
        **entry(settings),
        "nodes": f"{settings.least_pods}:{settings.num_pods}" if settings.elastic else settings.num_pods,
        **_environment(settings),
        **_container(settings),
        **_placement(settings),
        "labels": {**objects.custom_labels(settings), **objects.health_labels(settings)},
        "annotations": objects.pod_annotations(settings),
        "fault_tolerance": {ANNOTATIONS[key].field: text for key, text in policies(settings).items()},
        "recovery": _recovery(settings),
        **({"insecure_token": True} if settings.insecure_token else {}),
    }
    document = {key: value for key, value in fields.items() if value not in ("", None, {}, [])}
    ElasticJob.model_validate(document)
    return Converted(document=document, notes=(*notes(settings), *_changes(settings)))


def _taken(settings: Settings) -> Iterator[Problem]:
    for index, variable in enumerate(settings.variables):
        try:
            VARIABLE.read(variable.name)
        except RefusedError as error:
            text = f"{show(variable.name)} is not allowed in a job; expected {str(error) or VARIABLE.allowed}"
            yield Problem(path=f"environmentVariables[{index}].name", text=text)


def _environment(settings: Settings) -> dict[str, Any]:
    literals: dict[str, str] = {}
    references: dict[str, dict[str, Any]] = {}
    for variable in objects.environment(settings):
        name = variable["name"]
        # The last one of a name counts, of whatever kind the ones before are.
        literals.pop(name, None)
        references.pop(name, None)
        if "value" in variable:
            literals[name] = variable["value"]
        else:
            references[name] = variable
    return {"env": literals, "pod_env": list(references.values()), "env_from": list(objects.sources(settings))}


def _container(settings: Settings) -> dict[str, Any]:
    return {
        "resources": _resources(settings),
        "image": settings.container_image,
        "image_pull_policy": settings.image_pull_policy or "IfNotPresent",
        "image_pull_secrets": [secret.name for secret in settings.image_pull_secrets],
        "volumes": [volume for volume in objects.volumes(settings) if volume["name"] != objects.SHM],
        "volume_mounts": [mount for mount in objects.mounts(settings) if mount["name"] != objects.SHM],
        "init_containers": [container.model_dump(mode="json") for container in settings.init_containers],
        # The chart's containers may write wherever the image lets them, and setup commands do.
        "security_context": {**objects.security_context(settings), "readOnlyRootFilesystem": False},
    }


def _resources(settings: Settings) -> dict[str, Any]:
    shm = Fraction(0) if settings.disable_shared_memory else _shared(settings)
    limit = settings.limit_memory
    fields: dict[str, Any] = {
        "cpu": str(settings.num_cpus),
        "memory": _bytes(quantity(settings.memory) - shm),
        "cpu_limit": "" if settings.limit_cpus is None else str(settings.limit_cpus),
        "memory_limit": "" if limit is None else _bytes(quantity(limit) - shm),
        "shm": _bytes(shm) if shm else "",
        "gpus": settings.num_gpus,
        "extended": {name: str(number) for name, number in objects.roce(settings).items() if number},
    }
    return {key: value for key, value in fields.items() if value not in ("", 0, {})}


def _shared(settings: Settings) -> Fraction:
    """Return the size of /dev/shm in bytes: half of the memory, as Linux has it, whole MiB where it is that large.

    The chart gives it no size, so that it is a part of the pod's memory. A job file's comes on top of `memory`: both together
    are the pod's memory again.
    """
    half = quantity(settings.memory) / 2
    return Fraction(half // _MI * _MI) or Fraction(half // 1)


def _bytes(number: Fraction) -> str:
    whole = int(number)
    return f"{whole // _MI}Mi" if whole % _MI == 0 else str(whole)


def _placement(settings: Settings) -> dict[str, Any]:
    unhealthy = next(objects.expressions(settings))
    terms = {"nodeSelectorTerms": [{"matchExpressions": [unhealthy]}]}
    grace = settings.termination_grace
    return {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
        "host_ignore_list": list(settings.ignored_hosts),
        "scheduler_name": settings.scheduler,
        "priority_class": settings.priority,
        "queue": settings.queue_name,
        "service_account": settings.service_account,
        "termination_grace_period": None if grace is None else f"{grace or 1}s",
    }


def _recovery(settings: Settings) -> dict[str, Any]:
    if settings.elastic:
        return {} if settings.max_restarts is None else {"max_restarts": settings.max_restarts}
    # torchrun restarts nothing by itself: every failure is one of the job, unless the policy has the kubelet restart it.
    return {"max_restarts": 0} if settings.restart_policy == "Never" else {}


def _changes(settings: Settings) -> Iterator[str]:
    """Yield what is another thing in a job file than it is in the chart's objects."""
    yield (
        "pods of a job run as a non-root user without capabilities; change this with pod_security_context and security_context"
    )
    if settings.namespace:
        yield f"namespace: is not part of a job file; submit with --backend kubernetes --namespace {settings.namespace}"
    if settings.restart_policy != "Never":
        yield (
            f"restartPolicy: {settings.restart_policy} becomes recovery.max_restarts; agents restart workers in the same pod"
        )
    if settings.disable_shared_memory:
        yield "disableSharedMemory: ignored; pods need /dev/shm (64Mi per worker) for progress reports"
    if settings.pod_group:
        yield "podGroup: ignored; a queue admits MIN nodes at once"
    if settings.termination_grace == 0:
        yield "terminationGracePeriodSeconds: 0 becomes 1s, the minimum of a job file"
    if settings.scheduler == "sakkara" and not settings.elastic:
        yield "schedulerName: sakkara places the pods; Rallypoint assigns the ranks"
    if settings.limit_gpus and settings.limit_gpus != settings.num_gpus:
        yield "limitGpusPerPod: ignored; the GPU limit of a pod equals its request"
    if not program(settings):
        yield "setupCommands: without a mainProgram, the one worker of each pod runs them and stops at the first error"
