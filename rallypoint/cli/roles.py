"""A job with several roles as text: a line for each role, its groups, and the machines."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from rallypoint.job import ElasticJob, Role
from rallypoint.job.document import write_yaml
from rallypoint.job.placement import counts
from rallypoint.job.role import SIMPLE

__all__ = ["role_lines"]


def role_lines(job: ElasticJob, *, complete: bool = False) -> Iterator[str]:
    """Yield the description of the job; `complete` adds its whole document."""
    yield f"Job {job.name}: {len(job.roles)} {'role' if len(job.roles) == 1 else 'roles'}, profile {job.profile.value}"
    for role in job.roles:
        yield f"  {role.name}: {_size(role)}{_needs(role)}{'' if role.driver is not False else ', not a driver'}"
        yield f"    {shlex.join((*role.entrypoint.words, *role.args))}"
    for group in job.groups:
        yield f"  group {group.name or '-'}: {', '.join(group.roles)} on the same nodes"
    cluster = job.cluster
    if cluster.nodes is not None and cluster.devices_per_node is not None:
        kind = cluster.device_type or "gpu"
        yield f"  fits onto {cluster.nodes} nodes x {cluster.devices_per_node} devices ({kind})"
    if complete:
        yield from ("", "Complete job", *(f"  {line}" for line in write_yaml(job.to_document()).splitlines()))


def _size(role: Role) -> str:
    total, per_group = counts(role)
    if role.launch == SIMPLE:
        return f"{total} {'instance' if total == 1 else 'instances'}, {per_group} per group"
    nodes = "1 node" if role.nodes.max == 1 else f"{role.nodes} nodes"
    return f"elastic, {nodes} x {role.nproc_per_node} {'process' if role.nproc_per_node == 1 else 'processes'}"


def _needs(role: Role) -> str:
    needs = role.instance_resources
    words = [f"{name} {value}" for name in ("cpu", "memory", "disk") if (value := getattr(needs, name))]
    words += (
        [] if needs.gpus is None else ["without GPU" if needs.gpus == 0 else f"{needs.gpus} GPU{'s' if needs.gpus > 1 else ''}"]
    )
    words += [f"{name} {amount}" for name, amount in needs.user_defined.items()]
    return f", each {', '.join(words)}" if words else ""
