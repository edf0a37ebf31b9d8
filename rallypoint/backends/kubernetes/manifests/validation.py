"""What a job must be to run as pods, checked before anything is created. Pure: each check yields what is wrong, and where.

What only the cluster knows (a quota, a webhook, a class that is not there) the API server says to a dry run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rallypoint.backends.contract import SubmitError
from rallypoint.backends.kubernetes.manifests.checks import containers, labelled, quantities, storage
from rallypoint.backends.kubernetes.manifests.checks.place import Place, Wrong
from rallypoint.backends.kubernetes.manifests.kueue import QUEUE, QUEUE_PRIORITY, queue_of
from rallypoint.backends.kubernetes.manifests.parts import (
    TRAINER,
    container_of,
    coordinator_port,
    grace_seconds,
    template_of,
)
from rallypoint.job import ElasticJob, Role
from rallypoint.job.role import DEFAULT_ROLE, SIMPLE
from rallypoint.wire.plan import Plan, Profile
from rallypoint.wire.ports import AGENT_PORT, metrics_port

__all__ = ["check", "role_problems"]

_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def check(spec: ElasticJob, plan: Plan, role: Role) -> None:
    """Raise `SubmitError` with everything that keeps the job from running as pods, one line for each field."""
    place = Place() if len(spec.roles) == 1 and role.name == DEFAULT_ROLE else Place(path=f"roles.{role.name}")
    wrong = list(role_problems(place, plan, role))
    if wrong:
        lines = "\n".join(f"{problem.path}: {problem.text}" for problem in wrong)
        raise SubmitError(f"job {spec.name} cannot run on Kubernetes:\n{lines}")


def role_problems(place: Place, plan: Plan, role: Role) -> Iterator[Wrong]:
    """Yield everything that keeps the pods of one role from running."""
    wrong = list(containers.template(place, role))
    if wrong:  # the others read the template; they must be able to rely on its shape
        yield from wrong
        return
    for checked in _CHECKS:
        yield from checked(place, role)
    yield from _ports(place, plan, role)
    yield from _grace(place, plan, role)
    yield from _node_group(place, plan, role)


def _node_group(place: Place, plan: Plan, role: Role) -> Iterator[Wrong]:
    """Yield why the nodes of a role cannot be replaced together."""
    at = place.at("node_group_failover")
    if not role.node_group_failover.label:
        return
    if role.launch == SIMPLE:
        yield at.wrong("is not allowed for a simple role, whose instances are replaced one by one; remove the field")
    elif plan.profile is not Profile.LADDER:
        yield at.wrong(f"is not allowed with profile {plan.profile.value}, which has its own rules for nodes; remove the field")


def _image(place: Place, role: Role) -> Iterator[Wrong]:
    if not role.image and not container_of(template_of(role)["spec"], TRAINER).get("image"):
        yield place.at("image").wrong("is missing; expected an image with Python, torch and airflow-provider-rallypoint[agent]")


def _paths(place: Place, role: Role) -> Iterator[Wrong]:
    for name in ("workdir", "checkpoint_dir"):
        if getattr(role, name).startswith("~"):
            yield place.at(name).refused(getattr(role, name), "a path in the image; pods have no home folder")


def _grace(place: Place, plan: Plan, role: Role) -> Iterator[Wrong]:
    if grace_seconds(role, plan) < plan.workers.stop_grace:
        allowed = (
            f"at least recovery.stop_grace_period ({plan.workers.stop_grace:g}s), because Kubernetes kills the pod at its end"
        )
        yield place.at("termination_grace_period").refused(f"{role.termination_grace_period:g}s", allowed)


def _ports(place: Place, plan: Plan, role: Role) -> Iterator[Wrong]:
    template = template_of(role)["spec"]
    if metrics_port(plan, pod=True) == coordinator_port(plan):
        allowed = "another port; public metrics must not share the coordinator port"
        yield Place().at("health", "metrics_port").refused(metrics_port(plan, pod=True), allowed)
    if template.get("hostNetwork") and plan.rendezvous.coordinator_port == AGENT_PORT:
        allowed = f"another port than {AGENT_PORT}, which the agents use; with hostNetwork both can run on one node"
        yield Place().at("rendezvous", "port").refused(plan.rendezvous.coordinator_port, allowed)
    at = place.at("pod_template", "spec", "containers")
    for container in template.get("containers") or ():
        for port in container.get("ports") or ():
            if isinstance(port, Mapping) and port.get("containerPort") == AGENT_PORT:
                yield at.at(container["name"], "ports").refused(AGENT_PORT, "another port; the agent uses this one")


def _queue(place: Place, role: Role) -> Iterator[Wrong]:
    labelled = role.labels.get(QUEUE, "")
    if role.queue and labelled and labelled != role.queue:
        yield place.at("queue").refused(role.queue, f"the same as the label {QUEUE} ({labelled}); set one of them")
    if role.queue_priority and not queue_of(role):
        yield place.at("queue_priority").refused(role.queue_priority, "no priority without a queue")
    if role.queue_priority and role.labels.get(QUEUE_PRIORITY, role.queue_priority) != role.queue_priority:
        yield place.at("queue_priority").refused(
            role.queue_priority, f"the same as the label {QUEUE_PRIORITY}; set one of them"
        )


def _tolerations(place: Place, role: Role) -> Iterator[Wrong]:
    for index, toleration in enumerate(role.tolerations):
        at = place.at("tolerations", index)
        operator, effect = toleration.get("operator", "Equal"), toleration.get("effect", "")
        if operator not in ("Equal", "Exists"):
            yield at.at("operator").refused(operator, "one of Equal, Exists")
        if effect and effect not in _EFFECTS:
            yield at.at("effect").refused(effect, f"one of {', '.join(_EFFECTS)}")
        if operator == "Exists" and toleration.get("value"):
            yield at.at("value").refused(toleration["value"], "no value with the operator Exists")
        if operator == "Equal" and not toleration.get("key"):
            yield at.at("key").wrong("is missing; expected the key of the taint, or operator: Exists for all taints")


def _affinity(place: Place, role: Role) -> Iterator[Wrong]:
    known = ("nodeAffinity", "podAffinity", "podAntiAffinity")
    templates = place.at("pod_template", "spec", "affinity"), template_of(role)["spec"].get("affinity") or {}
    for at, affinity in ((place.at("affinity"), role.affinity), templates):
        if not isinstance(affinity, Mapping):
            yield at.refused(affinity, f"a mapping with some of {', '.join(known)}")
            continue
        for kind in affinity:
            if kind not in known:
                yield at.at(kind).wrong(f"is not a known key; expected one of {', '.join(known)}")
        yield from _node_affinity(at.at("nodeAffinity"), affinity.get("nodeAffinity") or {})


def _node_affinity(at: Place, affinity: Any) -> Iterator[Wrong]:
    key = "requiredDuringSchedulingIgnoredDuringExecution"
    required = affinity.get(key) or {} if isinstance(affinity, Mapping) else None
    terms = required.get("nodeSelectorTerms", []) if isinstance(required, Mapping) else None
    if not isinstance(terms, list) or not all(isinstance(term, Mapping) for term in terms):
        yield at.refused(affinity, f"a mapping with {key}: {{nodeSelectorTerms: [...]}}")


_CHECKS: tuple[Callable[[Place, Role], Iterator[Wrong]], ...] = (
    _image,
    _paths,
    quantities.check,
    labelled.check,
    storage.check,
    containers.check,
    _tolerations,
    _affinity,
    _queue,
)
