"""What a job's own words say of MindCluster's recovery of processes: flags of its script, and variables. Pure.

A script of MindSpeed is told by four flags, or by HIGH_AVAILABILITY, what it can do, MindSpore's by MS_ENABLE_TFT. Where no
`recover-strategy` says what may be tried, they do. Three more variables switch strategies off. All are read where a job may
have them: in `env`, in `pod_env`, and as `NAME=VALUE` in command lines. They reach the workers unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain

from rallypoint.compat.mindcluster.environment import (
    ELASTIC_RECOVER,
    HIGH_AVAILABILITY,
    PROCESS_RECOVER,
    RESTART_FAULT_PROCESS,
    TOLERANCE,
    read_tolerance,
)
from rallypoint.job.role import Role

__all__ = ["FLAGS", "flags_of", "switched_off", "variable", "wanted", "wrong"]

_AVAILABLE = "--enable-high-availability"
_REPAIR = "--enable-hbmfault-repair"
_REBOOT = "--enable-worker-reboot"
_ELASTIC = "--enable-elastic-training"

FLAGS = (_AVAILABLE, _REPAIR, _REBOOT, _ELASTIC)

#: Items of HIGH_AVAILABILITY, and the strategy that each stands for.
_ITEMS = ("dump", "elastic-training", "recover", "retry")

#: Items of MS_ENABLE_TFT, and the strategy that each stands for: RSC is rescheduling of pods, which is the label's to say.
_TOLERATED = {"ARF:1": "recover", "HCCE:1": "retry", "RSC:1": "", "TTP:1": "dump", "UCE:1": "retry"}

_IN_PLACE = "recover-in-place"
_ORDER = ("retry", _IN_PLACE, "recover", "elastic-training", "dump")


def flags_of(role: Role) -> frozenset[str]:
    """Return which of the four flags a role's command line has, also inside of one for a shell."""
    words = {word for text in _texts(role) for word in text.split()}
    return frozenset(words.intersection(FLAGS))


def variable(role: Role, name: str, text: str = r"[\w,.-]*") -> str | None:
    """Return the text of a variable of a role, or None where it is not said; a command line wins over `env`, as in a shell.

    `text` is what it may look like there.
    """
    given = [entry.get("value") for entry in role.pod_env if entry.get("name") == name]
    found = role.env.get(name, next((said for said in given if isinstance(said, str)), None))
    for line in _texts(role):
        for match in re.finditer(rf"(?<![\w$-]){name}=(?P<quote>['\"]?)(?P<text>{text})(?P=quote)", line):
            found = match["text"]
    return found


def _texts(role: Role) -> Iterator[str]:
    return chain(role.setup_commands, role.entrypoint.words, role.args)


def wanted(roles: Iterable[Role]) -> tuple[str, ...]:
    """Return the strategies that flags, HIGH_AVAILABILITY and MS_ENABLE_TFT ask for, in the order in which they are tried."""
    words = {word for role in roles for word in _wanted(role)}
    return tuple(word for word in _ORDER if word in words)


def _wanted(role: Role) -> Iterator[str]:
    flags, items, tolerated = flags_of(role), _items(role), _tolerated(role)
    yield from filter(None, map(_TOLERATED.get, tolerated))
    if _AVAILABLE in flags or items:
        yield "dump"  # comes with high availability
    if _REPAIR in flags or "retry" in items:
        yield "retry"
    if _ELASTIC in flags or "elastic-training" in items:
        yield "elastic-training"
    if _REBOOT in flags or "recover" in items or "ARF:1" in tolerated:
        yield "recover"
        if variable(role, RESTART_FAULT_PROCESS) == "on":
            yield _IN_PLACE


def _items(role: Role) -> frozenset[str]:
    text = variable(role, HIGH_AVAILABILITY) or ""
    return frozenset(item.strip() for item in text.split(",") if item.strip())


def _tolerated(role: Role) -> frozenset[str]:
    return read_tolerance(variable(role, TOLERANCE, r"\{[^{}'\"]*\}") or "")


def switched_off(role: Role) -> tuple[str, ...]:
    """Return the strategies that a role's variables switch off; one that is not said switches nothing off."""
    off: set[str] = set()
    if variable(role, PROCESS_RECOVER) == "off":
        off.update(_ORDER)
    if variable(role, ELASTIC_RECOVER) not in (None, "1"):
        off.update(word for word in _ORDER if word != "elastic-training")
    if variable(role, RESTART_FAULT_PROCESS) not in (None, "on"):
        off.add(_IN_PLACE)
    return tuple(word for word in _ORDER if word in off)


def wrong(role: Role, strategy: str | None) -> Iterator[tuple[str, str]]:
    """Yield the field of a role and what is wrong there; `strategy` is the job's recover-strategy, which implies the flags."""
    flags = flags_of(role)
    available = _AVAILABLE in flags or bool(_items(role)) or bool(strategy)
    for flag in (_REPAIR, _REBOOT):
        if flag in flags and not available:
            yield "args", f"{flag!r} is not allowed; expected {_AVAILABLE} as well, or HIGH_AVAILABILITY in env"
    told = variable(role, PROCESS_RECOVER)
    if told not in (None, "on", "off"):
        yield f"env.{PROCESS_RECOVER}", f"{told!r} is not allowed; expected on or off"
    for item in sorted(_tolerated(role).difference(_TOLERATED)):
        yield (
            f"env.{TOLERANCE}",
            f"{item!r} is not allowed; expected some of {', '.join(_TOLERATED)}, in braces and separated by commas",
        )
    for item in sorted(_items(role).difference(_ITEMS)):
        yield f"env.{HIGH_AVAILABILITY}", f"{item!r} is not allowed; expected some of {', '.join(_ITEMS)}, separated by commas"
