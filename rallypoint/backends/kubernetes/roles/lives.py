"""Which life of each instance was started last, as a ConfigMap of the job and an annotation of each pod keep it. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rallypoint.supervision.role_records import UnitKey
from rallypoint.wire.bounds import read_count

__all__ = ["LIVES_KEY", "Life", "Lives", "MadePod", "instance_of", "read_lives", "write_lives"]

#: Key of the ConfigMap.
LIVES_KEY = "lives.json"


@dataclass(frozen=True, kw_only=True, order=True)
class Life:
    """Which life of an instance a container begins with, in one attempt of the job."""

    reset: int = 0
    incarnation: int = 1


@dataclass(frozen=True, kw_only=True)
class MadePod:
    """The last pod of a group.

    Attributes:
        number: of the lives of the pod, over all attempts.
        made: it was created; before that a supervisor may create it again.
        lives: the first life of each of its containers.
    """

    attempt: int
    number: int
    made: bool = False
    lives: Mapping[str, Life] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, kw_only=True)
class Lives:
    """The last life of each instance, by its container, and the last pod of each group, by `place-number`."""

    instances: Mapping[str, UnitKey] = field(default_factory=dict, hash=False)
    pods: Mapping[str, MadePod] = field(default_factory=dict, hash=False)

    def with_instances(self, *keys: UnitKey) -> Lives:
        """Return the same with these lives as the last ones."""
        return dataclasses.replace(self, instances={**self.instances, **{f"{key.role}-{key.index}": key for key in keys}})

    def with_pod(self, group: str, pod: MadePod) -> Lives:
        """Return the same with this pod as the last one of a group."""
        return dataclasses.replace(self, pods={**self.pods, group: pod})

    def to_json(self) -> str:
        """Return the text that is kept."""
        return json.dumps(
            {
                "instances": {name: [key.attempt, key.reset, key.incarnation] for name, key in self.instances.items()},
                "pods": {
                    name: [pod.attempt, pod.number, int(pod.made), write_lives(pod.lives)] for name, pod in self.pods.items()
                },
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> Lives:
        """Return what was kept; raises `ValueError` for what is none."""
        if not text:
            return cls()
        try:
            return cls._read(json.loads(text))
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ValueError(
                f"the value of {LIVES_KEY} in the ConfigMap of the role instances is invalid ({error!r}); expected the "
                "incarnations of all role instances, as the supervisor stores them; restore the previous value"
            ) from error

    @classmethod
    def _read(cls, found: Any) -> Lives:
        instances = {}
        for name, (attempt, reset, incarnation) in found["instances"].items():
            role, index = instance_of(name)
            instances[name] = UnitKey(
                role=role, index=index, attempt=int(attempt), reset=int(reset), incarnation=int(incarnation)
            )
        pods = {
            name: MadePod(attempt=int(attempt), number=int(number), made=bool(made), lives=read_lives(str(lives)))
            for name, (attempt, number, made, lives) in found["pods"].items()
        }
        return cls(instances=instances, pods=pods)


def instance_of(container: str) -> tuple[str, int]:
    """Return the role and the index that the name of a container stands for; raises `ValueError`."""
    role, _, index = container.rpartition("-")
    return role, int(index)


def write_lives(lives: Mapping[str, Life]) -> str:
    """Return the first lives of a pod's containers as text."""
    return ",".join(f"{name}={life.reset}.{life.incarnation}" for name, life in lives.items())


def read_lives(text: str) -> dict[str, Life]:
    """Return the first lives of a pod's containers; nothing of what cannot be read."""
    found = {}
    for item in text.split(","):
        name, _, life = item.partition("=")
        reset, _, incarnation = life.partition(".")
        if _is_number(reset) and _is_number(incarnation) and _is_number(name.rpartition("-")[2]):
            found[name] = Life(reset=int(reset), incarnation=int(incarnation))
    return found


def _is_number(text: str) -> bool:
    return read_count(text) is not None
