"""AppWrappers, pods and nodes as small texts, and a wrapper that is stepped through time by its rules alone."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass, field
from typing import Any

from tests.emulator.controllers import conditions
from tests.emulator.controllers.appwrapper_rules import FINALIZER, Creation, Look, Step, step
from tests.emulator.controllers.settings import PREFIX, Settings
from tests.emulator.controllers.times import read_time

__all__ = ["Wrapped", "pytorchjob", "wrapper"]

_POD = re.compile(r"([PRSFU])(\*?)(?:\(([\d,]*)\))?(!?)")
_PHASES = {"P": "Pending", "R": "Running", "S": "Succeeded", "F": "Failed", "U": "Unknown"}

#: When the stories begin, in seconds since the epoch.
START = 1_700_000_000.0

_CREATED = Creation()


def pytorchjob(pods: int = 2) -> dict[str, Any]:
    """Return a PyTorchJob of one master and as many workers as that leaves."""
    pod = {"spec": {"containers": [{"name": "pytorch", "image": "any"}]}}
    roles = {"Master": {"replicas": 1, "template": pod}}
    if pods > 1:
        roles["Worker"] = {"replicas": pods - 1, "template": pod}
    metadata = {"name": "train"}
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": metadata, "spec": {"pytorchReplicaSpecs": roles}}


def wrapper(*templates: dict[str, Any], **annotations: str) -> dict[str, Any]:
    """Return a suspended AppWrapper of these components; annotations by their names behind the prefix."""
    return {
        "apiVersion": "workload.codeflare.dev/v1beta2",
        "kind": "AppWrapper",
        "metadata": {"name": "train", "annotations": {PREFIX + key: text for key, text in annotations.items()}},
        "spec": {"suspend": True, "components": [{"template": template} for template in templates or (pytorchjob(),)]},
    }


def pods(text: str) -> tuple[dict[str, Any], ...]:
    """Return pods: `P R S U` by phase, `F(3)` failed with a code, `F()` with none, `R*` being deleted, `R!` with a GPU."""
    return tuple(_pod(*match.groups()) for match in _POD.finditer(text))


def _pod(letter: str, deleting: str, codes: str | None, gpu: str) -> dict[str, Any]:
    ended = [
        {"state": {"terminated": {"exitCode": int(code)}}} for code in (codes if codes is not None else "1").split(",") if code
    ]
    limits = {"nvidia.com/gpu": 1} if gpu else {}
    return {
        "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleting else {},
        "spec": {"nodeName": "host", "containers": [{"name": "pytorch", "resources": {"limits": limits}}]},
        "status": {"phase": _PHASES[letter], "containerStatuses": ended if letter == "F" else []},
    }


@dataclass
class Wrapped:
    """A wrapper, the world around it, and what its controller did at the last look that was taken."""

    object: dict[str, Any]
    pods: tuple[dict[str, Any], ...] = ()
    components: tuple[dict[str, Any] | None, ...] = ()
    flagged: dict[str, frozenset[str]] = field(default_factory=dict)
    creation: Creation = _CREATED
    did: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    after: float | None = None

    def look(self, t: float) -> None:
        """Step at this second until the controller waits."""
        self.did = []
        creation = None
        for _ in range(20):
            made = step(
                Look(
                    wrapper=self.object,
                    components=self.components or (None,) * len(self.object["spec"]["components"]),
                    pods=self.pods,
                    flagged=self.flagged,
                    creation=creation,
                    settings=Settings.read(self.object["metadata"]["annotations"]),
                    now=START + t,
                )
            )
            creation = self._perform(made)
            if made.after != 0.0:
                self.after = made.after
                return
        raise AssertionError(f"no rest at {t} s: {self.did}, {self.object['status']}")

    def _perform(self, made: Step) -> Creation | None:
        self.object = {**self.object, "status": made.status}
        self.events += [] if made.event is None else [": ".join(made.event)]
        if made.finalizer is not None:
            self.object["metadata"]["finalizers"] = [FINALIZER] if made.finalizer else []
        self.did += ["delete now" if made.delete_now else "delete"] if made.delete else []
        self.did += ["kill"] if made.kill_pods else []
        if not made.create:
            return None
        self.did.append("create")
        if not self.creation.error:
            templates = (component["template"] for component in self.object["spec"]["components"])
            self.components = tuple(map(copy.deepcopy, templates))
        return self.creation

    def tell(self, **told: Any) -> None:
        """Change the world: pods, gone, component (missing, deleting, failed), suspend, creation, flagged, delete."""
        if "pods" in told:
            self.pods = pods(told["pods"])
        if told.get("gone"):
            self.pods, self.components = (), (None,) * len(self.components)
        if "component" in told:
            self._component(told["component"])
        if "suspend" in told:
            self.object["spec"]["suspend"] = told["suspend"]
        if told.get("delete"):
            self.object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        self.flagged = told.get("flagged", self.flagged)
        self.creation = told.get("creation", self.creation)

    def _component(self, what: str) -> None:
        first, *others = self.components
        assert first is not None
        if what == "deleting":
            first["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        if what == "failed":
            first["status"] = {"conditions": [{"type": "Failed", "status": "True"}]}
        self.components = (None if what == "missing" else first, *others)

    @property
    def phase(self) -> str:
        """The phase that the wrapper is in."""
        return str(self.object["status"].get("phase", ""))

    @property
    def retries(self) -> int:
        """How many resets were paid for."""
        return int(self.object["status"].get("resettingCount", 0))

    def so(self, said: str) -> bool:
        """Return whether a condition is as `Name`, `!Name`, `Name=reason` or `Name=reason@second` says."""
        name, _, reason = said.lstrip("!").partition("=")
        name, _, second = name.partition("@") if not reason else (name, "", reason.partition("@")[2])
        reason = reason.partition("@")[0]
        found = conditions.find(self.object["status"]["conditions"], name)
        if found is None:
            return said.startswith("!") and not reason and not second
        at = read_time(found["lastTransitionTime"]) - START
        return (
            (found["status"] == "False") == said.startswith("!")
            and reason in {"", found["reason"]}
            and (not second or abs(at - float(second)) < 0.001)
        )
