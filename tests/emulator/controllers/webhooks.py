"""What the admission webhooks of these controllers do to objects that are about to be created."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.emulator.controllers.kueue_groups import QUEUE, gated_pod
from tests.emulator.controllers.podsets import PodSetError, at_path, pod_sets
from tests.emulator.controllers.pytorchjob_rules import problems
from tests.emulator.errors import ApiError
from tests.emulator.resources import Resource

__all__ = ["WEBHOOKS"]

Object = dict[str, Any]

_MOST_POD_SETS = 8


def _queue(resource: Resource, body: Object) -> None:
    """Kueue: whoever names a queue begins suspended or gated."""
    labels = body["metadata"].get("labels", {})
    if QUEUE not in labels:
        return
    if resource.kind == "Pod":
        body.update(gated_pod(body))
    if resource.kind == "AppWrapper":
        body["spec"]["suspend"] = True


def _wrapper(resource: Resource, body: Object) -> None:
    """AppWrapper: its components are of this namespace, no wrappers, and have from 1 to 8 sets of pods, as declared."""
    if resource.kind != "AppWrapper":
        return
    try:
        _check(body)
    except PodSetError as error:
        message = f'admission webhook "vappwrapper.kb.io" denied the request: {error}'
        raise ApiError(403, "Forbidden", message) from error


def _check(wrapper: Object) -> None:
    count = sum(_checked(component, wrapper["metadata"]["namespace"]) for component in wrapper["spec"]["components"])
    if not 1 <= count <= _MOST_POD_SETS:
        raise PodSetError(f"spec.components: {count} pod sets; there must be from 1 to {_MOST_POD_SETS}")


def _checked(component: Object, namespace: str) -> int:
    template = component["template"]
    if template.get("kind") == "AppWrapper":
        raise PodSetError("spec.components: a wrapper in a wrapper")
    if template.get("metadata", {}).get("namespace", namespace) != namespace:
        raise PodSetError(f"spec.components: namespace {template['metadata']['namespace']} is not {namespace}")
    found = pod_sets(component)
    for pod_set in found:
        at_path(component, pod_set["path"])
    return len(found)


def _pytorchjob(resource: Resource, body: Object) -> None:
    """The training operator: each replica has a container of the name by which the operator finds it."""
    if resource.kind != "PyTorchJob":
        return
    if found := problems(body):
        hook = "validator.pytorchjob.training-operator.kubeflow.org"
        raise ApiError(403, "Forbidden", f'admission webhook "{hook}" denied the request: {"; ".join(found)}')


#: By the controller that brings them; each may change the body, or refuse it.
WEBHOOKS: dict[str, Callable[[Resource, Object], None]] = {
    "appwrapper": _wrapper,
    "kueue": _queue,
    "pytorchjob": _pytorchjob,
}
