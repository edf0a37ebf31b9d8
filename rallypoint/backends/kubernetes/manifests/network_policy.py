"""Who may connect to the pods of a job: the job's own pods, and the API server through which its supervisor comes. Pure.

The API server connects to the coordinator from addresses that no manifest can know. Where they are given, nobody else may;
where they are not, the coordinator's port is open, and the job's secret protects it.

An elastic role of a job with several roles has a uid of its own, so the pods of the whole job are those with the job's name and
those with the job's name as their parent.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rallypoint.backends.contract import BackendError
from rallypoint.backends.kubernetes import names
from rallypoint.backends.kubernetes.labels import JOB, PARENT, UID, Part, labels
from rallypoint.backends.kubernetes.manifests.checks.place import DNS_LABEL, is_dns_label
from rallypoint.backends.kubernetes.manifests.objects import metadata
from rallypoint.backends.kubernetes.manifests.parts import coordinator_port
from rallypoint.backends.kubernetes.names import JobRef
from rallypoint.wire.plan import Kind, Plan
from rallypoint.wire.ports import COORDINATOR_PORT, METRICS_PORT, metrics_port

__all__ = ["OPEN", "network_policies", "network_policy_of"]

#: `Plan.network_policy` without addresses of the API server.
OPEN = "on"


def network_policy_of(job: JobRef, plan: Plan) -> dict[str, Any]:
    """Return the NetworkPolicy of a job that asks for one; the job's ConfigMap owns it.

    That of a job with several roles selects the pods of its simple roles; each elastic role has a NetworkPolicy of its own.
    """
    sources = () if plan.network_policy == OPEN else tuple(plan.network_policy.split(","))
    # The pods of other kinds, and of simple roles, have no coordinator that a supervisor asks.
    port = coordinator_port(plan) if plan.kind is Kind.PODS and not plan.roles else 0
    own = {JOB: job.name, UID: job.uid}
    peers: tuple[dict[str, str], ...] = (own,)
    if job.parent:
        peers = ({JOB: job.parent}, {PARENT: job.parent})
    elif plan.roles:
        peers = (own, {PARENT: job.name})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(job, names.network_policy(job), labels(job, Part.NETWORK)),
        "spec": _spec(own, peers, sources, (port, metrics_port(plan, pod=True) if port and sources else 0)),
    }


def network_policies(namespace: str, job: str, *, api_server: Sequence[str] = ()) -> tuple[dict[str, Any], ...]:
    """Return NetworkPolicies for the jobs that are ever submitted by one name, to be applied by hand.

    The first selects the pods of the job, the second those of its elastic roles, if it has several roles. `api_server` are the
    networks from which the API server connects. Raises `BackendError` for what is no name or network.
    """
    if not is_dns_label(namespace):
        raise BackendError(f"--namespace: {namespace!r} is not allowed; expected {DNS_LABEL}")
    if not is_dns_label(job):
        raise BackendError(f"--job: {job!r} is not allowed; expected {DNS_LABEL}")
    for text in api_server:
        _require_network(text)
    ports = (COORDINATOR_PORT, METRICS_PORT if api_server else 0)
    whole = ({JOB: job}, {PARENT: job})
    return tuple(
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": f"{names.PREFIX}{job}{end}", "namespace": namespace},
            "spec": _spec(selector, whole, api_server, ports),
        }
        for end, selector in zip(("", "-roles"), whole, strict=True)
    )


def _require_network(text: str) -> None:
    try:
        ipaddress.ip_network(text)
    except ValueError as error:
        raise BackendError(
            f"--api-server: {text!r} is not allowed; expected a network such as 10.0.0.0/28 ({error})"
        ) from error


def _spec(
    selector: Mapping[str, str], peers: Sequence[Mapping[str, str]], sources: Sequence[str], ports: Sequence[int]
) -> dict[str, Any]:
    return {
        "podSelector": {"matchLabels": dict(selector)},
        "policyTypes": ["Ingress"],
        "ingress": list(_ingress(peers, sources, [port for port in ports if port])),
    }


def _ingress(peers: Sequence[Mapping[str, str]], sources: Sequence[str], ports: Sequence[int]) -> Iterator[dict[str, Any]]:
    yield {"from": [{"podSelector": {"matchLabels": dict(peer)}} for peer in peers]}
    if ports:
        came = {"from": [{"ipBlock": {"cidr": text}} for text in sources]} if sources else {}
        yield {**came, "ports": [{"port": port, "protocol": "TCP"} for port in ports]}
