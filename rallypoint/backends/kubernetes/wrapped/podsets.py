"""The pods that a manifest stands for: their templates, and how many of each. Pure.

AppWrapper's controller knows these kinds by itself; of any other kind the wrapper declares its `podSets`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["PodSet", "PodSetError", "pod_sets"]

_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


#: The most pod sets of a wrapper: AppWrapper's own limit, which is Kueue's.
_MOST = 8


class PodSetError(ValueError):
    """Pods are declared that are not there, or in too many sets; the text begins with the place in the manifest."""


@dataclass(frozen=True, kw_only=True)
class PodSet:
    """Pods of one template: `path` is its place in the manifest, `template` the very mapping there."""

    path: str
    template: dict[str, Any]
    replicas: int


def pod_sets(manifest: Mapping[str, Any]) -> Iterator[PodSet]:
    """Yield the pod sets of an AppWrapper, in the order of its components, or of one component. Raises `PodSetError`."""
    if manifest.get("kind") != "AppWrapper":
        yield from _of_component({"template": manifest}, "")
        return
    found: list[PodSet] = []
    for index, component in enumerate((manifest.get("spec") or {}).get("components") or ()):
        found += _of_component(component, f"spec.components[{index}].")
    if len(found) > _MOST:
        raise PodSetError(f"spec.components: the components have {len(found)} pod sets; at most {_MOST} are allowed")
    yield from found


def _of_component(component: Mapping[str, Any], where: str) -> Iterator[PodSet]:
    declared = [(each["path"], each.get("replicas", 1)) for each in component.get("podSets") or ()]
    implied = list(_implied(component["template"]))
    templates = [_at(component, path, where) for path, _ in declared or implied]
    if declared and implied and sorted(declared) != sorted(implied):
        raise PodSetError(
            f"{where}podSets: declares {_words(declared)}, but the pod templates of the component give {_words(implied)}; "
            "expected the same replicas and paths"
        )
    for (path, replicas), template in zip(declared or implied, templates, strict=True):
        yield PodSet(path=f"{where}{path}", template=template, replicas=int(replicas))


def _words(sets: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{replicas} at {path}" for path, replicas in sets)


def _at(component: Mapping[str, Any], path: str, where: str) -> dict[str, Any]:
    found: Any = component
    for name, index in _STEP.findall(path):
        try:
            found = found[name] if name else found[int(index)]
        except (KeyError, IndexError, TypeError):
            raise PodSetError(f"{where}podSets: the path {path} does not exist in the component") from None
    if not isinstance(found, dict) or not isinstance(found.get("spec"), Mapping):
        raise PodSetError(f"{where}podSets: the path {path} does not lead to a pod template")
    return found


def _implied(template: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    group, kind = str(template.get("apiVersion", "")).split("/")[0], template.get("kind")
    spec = template.get("spec") or {}
    if (group, kind) == ("v1", "Pod"):
        yield "template", 1
    elif (group, kind) in {("apps", "Deployment"), ("apps", "StatefulSet")}:
        yield "template.spec.template", spec.get("replicas", 1)
    elif (group, kind) == ("batch", "Job"):
        yield "template.spec.template", _of_batch(spec)
    elif (group, kind) == ("kubeflow.org", "PyTorchJob"):
        for role in ("Master", "Worker"):
            found = (spec.get("pytorchReplicaSpecs") or {}).get(role)
            if found is not None:
                yield f"template.spec.pytorchReplicaSpecs.{role}.template", found.get("replicas", 1)
    elif group == "ray.io" and kind in {"RayJob", "RayCluster"}:
        yield from _of_ray(template, "template.spec.rayClusterSpec" if kind == "RayJob" else "template.spec")
    elif (group, kind) == ("jobset.x-k8s.io", "JobSet"):
        for index, job in enumerate(spec.get("replicatedJobs") or ()):
            path = f"template.spec.replicatedJobs[{index}].template.spec.template"
            yield path, job.get("replicas", 1) * _of_batch((job.get("template") or {}).get("spec") or {})


def _of_ray(template: Mapping[str, Any], where: str) -> Iterator[tuple[str, int]]:
    spec = template.get("spec") or {}
    cluster = spec.get("rayClusterSpec") or {} if where.endswith("rayClusterSpec") else spec
    yield f"{where}.headGroupSpec.template", 1
    for index, group in enumerate(cluster.get("workerGroupSpecs") or ()):
        pods = int(group.get("replicas", 1)) * int(group.get("numOfHosts", 1))
        yield f"{where}.workerGroupSpecs[{index}].template", pods


def _of_batch(spec: Mapping[str, Any]) -> int:
    parallel = int(spec.get("parallelism", 1))
    return min(parallel, int(spec.get("completions", parallel)))
