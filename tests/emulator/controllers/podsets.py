"""The pods that an AppWrapper's components stand for: how many, and where their templates are. Pure."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["PodSetError", "at_path", "expected_pods", "pod_sets"]

_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


class PodSetError(ValueError):
    """A component's pod sets are declared otherwise than they are, or lead nowhere."""


def pod_sets(component: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the pod sets of a component, each with `path` and `replicas`: the declared ones, or else what its kind implies.

    Raises `PodSetError` where both are known and differ.
    """
    implied = _implied(component.get("template", {}))
    declared = [
        {"path": declared["path"], "replicas": declared.get("replicas", 1)} for declared in component.get("podSets", [])
    ]
    if implied and declared and declared != implied:
        raise PodSetError(f"podSets: {declared} are declared, and {implied} are there")
    return declared or implied


def expected_pods(component_status: list[dict[str, Any]]) -> int:
    """Return how many pods a wrapper waits for, from its status: what was counted at its creation never changes."""
    return sum(counted.get("replicas", 1) for component in component_status for counted in component.get("podSets", []))


def at_path(component: dict[str, Any], path: str) -> dict[str, Any]:
    """Return the pod template at a path such as `template.spec.replicatedJobs[0].template`; raises `PodSetError`."""
    found: Any = component
    for name, index in _STEP.findall(path):
        try:
            found = found[name] if name else found[int(index)]
        except (KeyError, IndexError, TypeError):
            raise PodSetError(f"podSets: {path} is not in the template") from None
    if not isinstance(found, dict):
        raise PodSetError(f"podSets: {path} is no template of a pod")
    return found


def _implied(template: dict[str, Any]) -> list[dict[str, Any]]:
    group, kind = template.get("apiVersion", "").split("/")[0], template.get("kind", "")
    spec = template.get("spec", {})
    if (group, kind) == ("v1", "Pod"):
        return [{"path": "template", "replicas": 1}]
    if (group, kind) in {("apps", "Deployment"), ("apps", "StatefulSet")}:
        return [{"path": "template.spec.template", "replicas": spec.get("replicas", 1)}]
    if (group, kind) == ("batch", "Job"):
        return [{"path": "template.spec.template", "replicas": _of_batch(spec)}]
    if (group, kind) == ("kubeflow.org", "PyTorchJob"):
        return list(_of_pytorch(spec.get("pytorchReplicaSpecs", {})))
    if (group, kind) == ("jobset.x-k8s.io", "JobSet"):
        return list(_of_jobset(spec.get("replicatedJobs", [])))
    return []


def _of_batch(spec: dict[str, Any]) -> int:
    parallel: int = spec.get("parallelism", 1)
    return min(parallel, spec.get("completions", parallel))


def _of_pytorch(replicas: dict[str, Any]) -> Any:
    for role in ("Master", "Worker"):
        if role in replicas:
            path = f"template.spec.pytorchReplicaSpecs.{role}.template"
            yield {"path": path, "replicas": replicas[role].get("replicas", 1)}


def _of_jobset(jobs: list[dict[str, Any]]) -> Any:
    for index, job in enumerate(jobs):
        path = f"template.spec.replicatedJobs[{index}].template.spec.template"
        yield {"path": path, "replicas": job.get("replicas", 1) * _of_batch(job["template"].get("spec", {}))}
