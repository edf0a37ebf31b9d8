"""The variables with which MindCluster tells a job's processes how they may be recovered. Pure.

Two variants of one table. `documented` is what MindCluster's documentation prints, and the default. `operator` is what its
operator's code does beyond that: it switches the watchdog of collectives off, and takes `exit` for `recover`. A word adds its
variables, and several words the union of theirs; their order means nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

__all__ = [
    "ELASTIC_RECOVER",
    "HIGH_AVAILABILITY",
    "LABEL",
    "PROCESS_RECOVER",
    "RESTART_FAULT_PROCESS",
    "TOLERANCE",
    "Variant",
    "read_tolerance",
    "recovery_environment",
    "recovery_labels",
]

PROCESS_RECOVER = "PROCESS_RECOVER"
ELASTIC_RECOVER = "ELASTIC_PROCESS_RECOVER_ENABLE"
RESTART_FAULT_PROCESS = "ENABLE_RESTART_FAULT_PROCESS"
HIGH_AVAILABILITY = "HIGH_AVAILABILITY"

#: MindSpore's list of what it tolerates, between braces: `{ARF:1,TTP:1}`.
TOLERANCE = "MS_ENABLE_TFT"

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


_ON = {PROCESS_RECOVER: "on", ELASTIC_RECOVER: "1"}
_RECOVER = _Share(variables=_ON, available="recover", tolerated=("ARF:1",))
_SHARES: Mapping[str, _Share] = {
    "retry": _Share(variables=_ON, available="retry", tolerated=("UCE:1", "HCCE:1")),
    "recover": _RECOVER,
    "recover-in-place": _Share(
        variables={**_ON, RESTART_FAULT_PROCESS: "on"}, available="recover", tolerated=_RECOVER.tolerated
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
    return {**found, TOLERANCE: f"{{{','.join(sorted(items))}}}"} if items or complete else {}


def read_tolerance(text: str) -> frozenset[str]:
    """Return the items of MS_ENABLE_TFT, in the form of the documentation (`'{ UCE:1, HCCE:1}'`) or of the code."""
    bare = text.strip().strip("'\"").strip().removeprefix("{").removesuffix("}")
    return frozenset(item.strip() for item in bare.split(",") if item.strip())


def recovery_labels(strategy: str | None, *, variant: Variant = Variant.DOCUMENTED) -> dict[str, str]:
    """Return the label that a job gets by its annotation: for any text, or in the operator's variant for an empty one, too."""
    given = strategy is not None if variant is Variant.OPERATOR else bool(strategy and strategy.strip())
    return {LABEL: "on"} if given else {}
