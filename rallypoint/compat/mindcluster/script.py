"""What a job's own words say of MindCluster's recovery of processes, and the variables that tell its processes so. Pure.

A script of MindSpeed is told by four flags, or by HIGH_AVAILABILITY, what it can do, MindSpore's by MS_ENABLE_TFT. Where no
`recover-strategy` says what may be tried, they do. Three more variables switch strategies off. All are read where a job may
have them: in `env`, in `pod_env`, and as `NAME=VALUE` in command lines. They reach the workers unchanged.

The variables of the processes have two variants of one table. `documented` is what MindCluster's documentation prints, and the
default. `operator` is what its operator's code does beyond that: it switches the watchdog of collectives off, and takes `exit`
for `recover`. A word adds its variables, and several words the union of theirs; their order means nothing.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from rallypoint.job.role import Role

__all__ = [
    "FLAGS",
    "HIGH_AVAILABILITY",
    "LABEL",
    "PROCESS_RECOVER",
    "Variant",
    "flags_of",
    "read_tolerance",
    "recovery_environment",
    "recovery_labels",
    "switched_off",
    "variable",
    "wanted",
    "wrong",
]

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

PROCESS_RECOVER = "PROCESS_RECOVER"

_ELASTIC_RECOVER = "ELASTIC_PROCESS_RECOVER_ENABLE"

_RESTART_FAULT_PROCESS = "ENABLE_RESTART_FAULT_PROCESS"

HIGH_AVAILABILITY = "HIGH_AVAILABILITY"

#: MindSpore's list of what it tolerates, between braces: `{ARF:1,TTP:1}`.
_TOLERANCE = "MS_ENABLE_TFT"

#: The label of a job whose processes are recovered one by one; a strategy puts it there.
LABEL = "process-recover-enable"

_MINDIO = "MINDIO_FOR_MINDSPORE"

_PYTORCH, _MINDSPORE = "pytorch", "mindspore"

_POD = "RSC:1"

#: The watchdog of the collectives would end a process that waits to be recovered.
_WATCHDOG: Mapping[str, Mapping[str, str]] = {
    _PYTORCH: {"HCCL_ASYNC_ERROR_HANDLING": "0"},
    _MINDSPORE: {"MS_ENABLE_THM": "{HCCL_WATCHDOG:0}"},
}

_ON = {PROCESS_RECOVER: "on", _ELASTIC_RECOVER: "1"}


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
        if variable(role, _RESTART_FAULT_PROCESS) == "on":
            yield _IN_PLACE


def _items(role: Role) -> frozenset[str]:
    text = variable(role, HIGH_AVAILABILITY) or ""
    return frozenset(item.strip() for item in text.split(",") if item.strip())


def _tolerated(role: Role) -> frozenset[str]:
    return read_tolerance(variable(role, _TOLERANCE, r"\{[^{}'\"]*\}") or "")


def switched_off(role: Role) -> tuple[str, ...]:
    """Return the strategies that a role's variables switch off; one that is not said switches nothing off."""
    off: set[str] = set()
    if variable(role, PROCESS_RECOVER) == "off":
        off.update(_ORDER)
    if variable(role, _ELASTIC_RECOVER) not in (None, "1"):
        off.update(word for word in _ORDER if word != "elastic-training")
    if variable(role, _RESTART_FAULT_PROCESS) not in (None, "on"):
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
            f"env.{_TOLERANCE}",
            f"{item!r} is not allowed; expected some of {', '.join(_TOLERATED)}, in braces and separated by commas",
        )
    for item in sorted(_items(role).difference(_ITEMS)):
        yield f"env.{HIGH_AVAILABILITY}", f"{item!r} is not allowed; expected some of {', '.join(_ITEMS)}, separated by commas"


class Variant(str, enum.Enum):
    """Whose table holds."""

    DOCUMENTED = "documented"
    OPERATOR = "operator"


@dataclass(frozen=True, kw_only=True)
class _Share:
    """What one word adds: plain `variables`, an item of HIGH_AVAILABILITY (PyTorch), items of MS_ENABLE_TFT (MindSpore)."""

    variables: Mapping[str, str]
    available: str = ""
    tolerated: tuple[str, ...] = ()


_RECOVER = _Share(variables=_ON, available="recover", tolerated=("ARF:1",))


_SHARES: Mapping[str, _Share] = {
    "retry": _Share(variables=_ON, available="retry", tolerated=("UCE:1", "HCCE:1")),
    "recover": _RECOVER,
    "recover-in-place": _Share(
        variables={**_ON, _RESTART_FAULT_PROCESS: "on"}, available="recover", tolerated=_RECOVER.tolerated
    ),
    "elastic-training": _Share(variables={PROCESS_RECOVER: "on"}, available="elastic-training"),
    "dump": _Share(variables=_ON, available="dump", tolerated=("TTP:1",)),
}


def recovery_environment(
    strategy: str | None,
    *,
    framework: str = _PYTORCH,
    pod_rescheduling: str = "",
    variant: Variant = Variant.DOCUMENTED,
) -> dict[str, str]:
    """Return the variables for the text of the annotation `recover-strategy`, None where there is none.

    Args:
        strategy: words with commas between them; a word that is none of the six adds nothing.
        framework: `pytorch` or `mindspore`; any other gets no variable.
        pod_rescheduling: text of the label `pod-rescheduling`, of which `on` alone counts.
        variant: whose table.
    """
    words = [word.strip() for word in strategy.split(",")] if strategy else []
    shares = [share for word in words if (share := _share(word, framework, variant)) is not None]
    found = {name: text for share in shares for name, text in share.variables.items()}
    complete = bool(words) and variant is Variant.OPERATOR  # it writes its list where there is any text, an empty one too
    if framework == _PYTORCH and (shares or complete):
        found[HIGH_AVAILABILITY] = ",".join(sorted({share.available for share in shares}))
    elif framework == _MINDSPORE:
        found |= _tolerance(shares, complete=complete, pod=pod_rescheduling == "on")
    return {**found, **_WATCHDOG.get(framework, {})} if complete else found


def _share(word: str, framework: str, variant: Variant) -> _Share | None:
    if framework not in (_PYTORCH, _MINDSPORE) or (word == "elastic-training" and framework == _MINDSPORE):
        return None
    if word == "exit" and variant is Variant.OPERATOR:
        return _RECOVER
    return _SHARES.get(word)


def _tolerance(shares: Iterable[_Share], *, complete: bool, pod: bool) -> dict[str, str]:
    items = {item for share in shares for item in share.tolerated}
    found = {_MINDIO: "1"} if items or complete else {}
    if pod:
        items.add(_POD)
    return {**found, _TOLERANCE: f"{{{','.join(sorted(items))}}}"} if items or complete else {}


def read_tolerance(text: str) -> frozenset[str]:
    """Return the items of MS_ENABLE_TFT, in the form of the documentation (`'{ UCE:1, HCCE:1}'`) or of the code."""
    bare = text.strip().strip("'\"").strip().removeprefix("{").removesuffix("}")
    return frozenset(item.strip() for item in bare.split(",") if item.strip())


def recovery_labels(strategy: str | None, *, variant: Variant = Variant.DOCUMENTED) -> dict[str, str]:
    """Return the label that a job gets by its annotation: for any text, or in the operator's variant for an empty one, too."""
    given = strategy is not None if variant is Variant.OPERATOR else bool(strategy and strategy.strip())
    return {LABEL: "on"} if given else {}
