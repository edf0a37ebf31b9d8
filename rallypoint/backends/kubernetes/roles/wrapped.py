"""A job with several roles as an AppWrapper: one JobSet, in which each role, or group of roles, is one pod set. Pure.

There is no conductor: the AppWrapper's controller counts pods and retries the whole job, and Kubernetes restarts containers of
simple roles within their pods. The controller waits until every pod has succeeded, so a server (`driver: false`) runs under
`rallypoint-agent server`: once all drivers have succeeded, the supervisor writes an annotation into its pod, and it ends there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rallypoint.backends.contract import SubmitError
from rallypoint.backends.kubernetes.labels import DOMAIN, DRIVER_PODS, DRIVERS, END
from rallypoint.backends.kubernetes.manifests.blueprint import PLACEHOLDER, in_the_image
from rallypoint.backends.kubernetes.manifests.checks.place import Place, Wrong
from rallypoint.backends.kubernetes.manifests.kueue import QUEUE, QUEUE_PRIORITY
from rallypoint.backends.kubernetes.manifests.literal import literal, literals, variables
from rallypoint.backends.kubernetes.manifests.parts import grace_seconds
from rallypoint.backends.kubernetes.manifests.volumes import OURS
from rallypoint.backends.kubernetes.names import JobRef
from rallypoint.backends.kubernetes.roles.blueprint import child, claims
from rallypoint.backends.kubernetes.roles.gang import gang_of
from rallypoint.backends.kubernetes.roles.layout import Group, elastic_roles, groups, places, simple_roles
from rallypoint.backends.kubernetes.roles.lives import Life
from rallypoint.backends.kubernetes.roles.pods import unit_pod
from rallypoint.backends.kubernetes.roles.validation import check
from rallypoint.backends.kubernetes.wrapped.kinds import WRAPPING
from rallypoint.backends.kubernetes.wrapped.template import MASTER_PORT, pod_template
from rallypoint.job import ElasticJob, Role
from rallypoint.job.annotations import write_annotations
from rallypoint.job.compile_roles import compile_roles
from rallypoint.job.placement import counts
from rallypoint.job.role import SIMPLE
from rallypoint.wire import env
from rallypoint.wire.plan import Kind, Plan
from rallypoint.wire.python import run_module
from rallypoint.wire.role_plans import role_plan

__all__ = ["MOST_POD_SETS", "appwrapper_of"]

#: Pod sets of one AppWrapper, as its webhook and Kueue allow.
MOST_POD_SETS = 8

_KUEUE = "kueue.x-k8s.io/"

#: The volume with the request to end the servers of a pod, where it is mounted, and its file.
_END, _END_FOLDER, _END_FILE = f"{OURS}end", "/etc/rallypoint-end", "end"

#: Volumes that only a job of kind `pods` has.
_NOT_HERE = (f"{OURS}secret", f"{OURS}roles")

#: Variables that each pod of a set works out for itself, from its number in the set.
_RANKS = ("RANK", "ROLE_RANK", env.ROLE_RANK)
_GROUPS = ("GROUP_RANK", "NODE_RANK", env.GROUP)


def appwrapper_of(job: ElasticJob) -> dict[str, Any]:
    """Return the AppWrapper that runs a job with several roles; raises `SubmitError` for one that it cannot run."""
    plan = compile_roles(job)
    check(job, plan, coordinators=False)
    wrong = list(_problems(job))
    if wrong:
        lines = "\n".join(f"{problem.path}: {problem.text}" for problem in wrong)
        raise SubmitError(f"job {job.name} cannot run in an AppWrapper:\n{lines}")
    ref, wrapping = JobRef(name=job.name, uid=PLACEHOLDER, namespace=""), WRAPPING[Kind.APPWRAPPER]
    gang = gang_of(ref, job)
    queue = {} if gang is None else {QUEUE: gang.queue, **({QUEUE_PRIORITY: gang.priority} if gang.priority else {})}
    shared = [{"template": {**claim, "metadata": {"name": claim["metadata"]["name"]}}} for claim in claims(ref, job)]
    return {
        "apiVersion": wrapping.version,
        "kind": wrapping.kind,
        "metadata": {
            "name": job.name,
            "labels": {**job.labels, **queue},
            "annotations": {**job.annotations, **write_annotations(job)},
        },
        "spec": {"components": [*shared, {"template": _jobset(ref, job, plan)}]},
    }


def _problems(job: ElasticJob) -> Iterator[Wrong]:
    sets = len(elastic_roles(job)) + len(places(job))
    if sets > MOST_POD_SETS:
        yield Place(path="roles").wrong(
            f"{len(job.roles)} roles need {sets} pod sets, and an AppWrapper has at most {MOST_POD_SETS}; collocate simple "
            "roles in groups, or run the job with kind pods"
        )
    for role in job.roles:
        place = Place(path=f"roles.{role.name}")
        if role.on_failure == "none":
            yield place.at("on_failure").refused(
                "none", "instance, role or job, with fault_tolerance.retry_limit: 0 for no retry"
            )
    if job.tls:
        yield Place(path="tls").refused(job.tls, "off for a job with several roles of kind appwrapper")


def _jobset(ref: JobRef, job: ElasticJob, plan: Plan) -> dict[str, Any]:
    first: dict[str, Group] = {}
    numbers: dict[str, int] = {}
    for group in groups(job):
        first.setdefault(group.place, group)
        numbers[group.place] = numbers.get(group.place, 0) + 1
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": job.name},
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": [
                *(_elastic(ref, job, plan, role) for role in elastic_roles(job)),
                *(_simple(ref, job, plan, group, numbers[place]) for place, group in first.items()),
            ],
        },
    }


def _replicated(name: str, pods: int, template: Mapping[str, Any], *, restart: str, restarts: int) -> dict[str, Any]:
    """Return a Job with numbered pods."""
    spec = {**template["spec"], "restartPolicy": restart}
    return {
        "name": name,
        "replicas": 1,
        "template": {
            "spec": {
                "completionMode": "Indexed",
                "completions": pods,
                "parallelism": pods,
                "backoffLimit": restarts,
                "template": {**template, "spec": spec},
            }
        },
    }


def _elastic(ref: JobRef, job: ElasticJob, plan: Plan, role: Role) -> dict[str, Any]:
    """Return the nodes of an elastic role, which meet at its first pod by the name that the JobSet gives it."""
    spec, own = child(ref, job, plan, role_plan(plan, role.name))
    (single,) = spec.roles
    # The Secret of calls between roles belongs to jobs of kind `pods`.
    single = single.model_copy(update={key: getattr(role, key) for key in ("pod_env", "volumes", "volume_mounts")})
    template = pod_template(spec.model_copy(update={"roles": (single,)}), in_the_image(own, single), single)
    _add_end(template, job, plan, {template["spec"]["containers"][0]["name"]: role})
    port = own.rendezvous.coordinator_port or MASTER_PORT
    meeting = {"MASTER_ADDR": f"{job.name}-{role.name}-0-0.{job.name}", "MASTER_PORT": str(port)}
    trainer = template["spec"]["containers"][0]
    trainer["env"] = [*variables(meeting), *trainer["env"]]
    return _replicated(role.name, own.max_nodes, template, restart="Never", restarts=0)


def _simple(ref: JobRef, job: ElasticJob, plan: Plan, group: Group, pods: int) -> dict[str, Any]:
    """Return the pods of a simple role, or of a group of them."""
    lives = dict.fromkeys(group.instances, Life())
    pod = unit_pod(ref, spec=job, plan=plan, group=group, attempt=1, number=1, lives=lives)
    spec = {key: value for key, value in pod["spec"].items() if key not in ("hostname", "restartPolicy", "subdomain")}
    spec["volumes"] = [volume for volume in spec["volumes"] if volume["name"] not in _NOT_HERE]
    ours = {one.container: one for one in group.instances}
    roles = {one.container: next(role for role in job.roles if role.name == one.role) for one in group.instances}
    template: dict[str, Any] = {"metadata": _given_metadata(pod["metadata"]), "spec": spec}
    _add_end(template, job, plan, roles)
    for container in spec["containers"]:
        container["volumeMounts"] = [mount for mount in container["volumeMounts"] if mount["name"] not in _NOT_HERE]
        if container["name"] in ours:
            one = ours[container["name"]]
            _number(container, one.index, counts(roles[one.container])[1])
    alone = [role for role in simple_roles(job) if role.name in {one.role for one in group.instances}]
    within = all(role.on_failure in ("", "instance") for role in alone)
    return _replicated(
        group.place,
        pods,
        template,
        restart="OnFailure" if within else "Never",
        restarts=job.recovery.node_replacements * pods if within else 0,
    )


def _number(container: dict[str, Any], index: int, per_group: int) -> None:
    """Let a container, which is changed in place, work out its rank from the number of its pod."""
    dropped = {*_RANKS, *_GROUPS, "NAME", env.ATTEMPT, env.ROLES_SECRET_FILE, env.ROLES_URL}
    container["env"] = [one for one in container["env"] if one["name"] not in dropped]
    role = next(one["value"] for one in container["env"] if one["name"] == env.ROLE)
    ranks = " ".join(f'{name}="$rank"' for name in _RANKS)
    pods = " ".join(f'{name}="$JOB_COMPLETION_INDEX"' for name in _GROUPS)
    script = f'rank=$((JOB_COMPLETION_INDEX * {per_group} + {index})); export {ranks} {pods} NAME="{role}-$rank"; exec "$@"'
    container["command"] = ["sh", "-e", "-c", literal(script), "start", *container["command"]]


def _add_end(template: dict[str, Any], job: ElasticJob, plan: Plan, roles: Mapping[str, Role]) -> None:
    """Let the servers among the containers of a pod, which is changed in place, end within it when they are asked to.

    `roles`: of each of our containers.
    """
    if all(role.driver is not False for role in job.roles):
        return
    spec, servers = template["spec"], [name for name, role in roles.items() if role.driver is False]
    drivers = [name for name in roles if name not in servers]
    told = {DRIVERS: ",".join(drivers)} if drivers else {}
    if servers:
        told[DRIVER_PODS] = str(_driver_pods(job))
        request = {"path": _END_FILE, "fieldRef": {"fieldPath": f"metadata.annotations['{END}']"}}
        spec["volumes"] = [*(spec.get("volumes") or ()), {"name": _END, "downwardAPI": {"items": [request]}}]
    template["metadata"]["annotations"] = {**(template["metadata"].get("annotations") or {}), **told}
    for container in spec["containers"]:
        if container["name"] in servers:
            role = roles[container["name"]]
            own = role_plan(plan, role.name).read()
            # An agent ends its own workers within their grace period.
            simple = role.launch == SIMPLE and role.termination_grace_period is None
            grace = own.workers.stop_grace if simple else grace_seconds(role, own)
            words = ("server", "--until", f"{_END_FOLDER}/{_END_FILE}", "--grace", f"{grace:g}", "--", *container["command"])
            host = run_module("rallypoint.agent", *words, python=literals(role.python or ("python",)))
            container["command"] = [*host]
            mount = {"name": _END, "mountPath": _END_FOLDER, "readOnly": True}
            container["volumeMounts"] = [*(container.get("volumeMounts") or ()), mount]


def _driver_pods(job: ElasticJob) -> int:
    """Return the number of pods with a driver."""
    nodes = sum(role.nodes.max for role in elastic_roles(job) if role.driver is not False)
    drivers = {role.name for role in simple_roles(job) if role.driver is not False}
    return nodes + sum(any(one.role in drivers for one in group.instances) for group in groups(job))


def _given_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    given = {key: _given(metadata.get(key) or {}) for key in ("labels", "annotations")}
    return {key: words for key, words in given.items() if words}


def _given(words: Mapping[str, str]) -> dict[str, str]:
    """Return labels or annotations without ours, and without those by which a queue would take each pod for a job."""
    return {key: text for key, text in words.items() if not key.startswith((DOMAIN, _KUEUE))}
