"""What the API server's refusals mean: which field or permission they are about, and whether trying again can help. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rallypoint.backends.contract import ActionError, BackendError, SubmitError
from rallypoint.kube.http import read_refusal

__all__ = [
    "ApiError",
    "GoneError",
    "TooLargeError",
    "UnreachableError",
    "action_error",
    "never_fits",
    "refusal",
    "submit_error",
]

_ROLE = "`rallypoint manifests rbac` prints the required Role"

#: Refusals that are about a moment, not about what was asked for.
_TRANSIENT = frozenset({408, 409, 429, 500, 502, 503, 504})

#: `requested: requests.cpu=8,pods=1, used: requests.cpu=2,pods=1, limited: requests.cpu=4,pods=9`, as ResourceQuota says it.
_QUOTA = re.compile(r"requested: (?P<requested>.*?), used: .*?, limited: (?P<limited>.*)$", re.DOTALL)

#: A right that is missing, as RBAC says it; a 403 of admission is no question of rights.
_NO_RIGHT = re.compile(r" cannot \w+ resource ")

#: What admission says of a pod that names what does not exist.
_MISSING = re.compile(
    r'no (?P<kind>PriorityClass) with name (?P<after>\S+) was found|(?P<kind2>serviceaccount) "(?P<before>[^"]+)" not found'
)
_MISSING_KINDS: Mapping[str, tuple[str, str]] = {
    "priorityclass": ("PriorityClass", "priority_class"),
    "serviceaccount": ("ServiceAccount", "service_account"),
}

_SUFFIXES: Mapping[str, float] = {
    "m": 1e-3,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "E": 1e18,
    **{f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTPE", 1)},
}
_QUANTITY = re.compile(r"(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)([a-zA-Z]*)")


#: Characters of the reason and message of an error that are kept: they stand in records, logs and the tab.
_REASON, _SAID = 100, 8192


class UnreachableError(BackendError):
    """The API server did not answer."""


class ApiError(BackendError):
    """The API server refused; `status` is its HTTP code, `reason` its word (`NotFound`), `said` its sentence."""

    def __init__(self, what: str, *, status: int, reason: str = "", said: str = "") -> None:
        reason, said = reason[:_REASON], said[:_SAID]
        hint = f"; {_ROLE}" if status == 403 and " cannot " in said else ""
        word = f"{status} {reason}".strip()
        super().__init__(f"{what}: rejected by the API server ({word}): {said or 'no message'}{hint}")
        self.status, self.reason, self.said = status, reason, said

    @property
    def transient(self) -> bool:
        """Asking again may have another answer."""
        return self.status in _TRANSIENT


class GoneError(ApiError):
    """The history that a watch or a list wants to go on from is not kept any more: list anew."""


class TooLargeError(ApiError):
    """The response is larger than what is read of one; a smaller page of a list may not be."""


def refusal(what: str, status: int, body: bytes) -> ApiError:
    """Return the error for an answer that is no success; `body` is a Status object, or whatever stood between us said."""
    found = read_refusal(body)
    kind = GoneError if status == 410 or found.reason in ("Expired", "Gone") else ApiError
    return kind(what, status=status, reason=found.reason, said=found.message)


def submit_error(error: ApiError, *, namespace: str, what: str) -> SubmitError:
    """Return what a person is told whose job the API server does not take, before anything was created."""
    said = error.said
    if error.status == 404 and re.search(r"namespaces? .*not found", said):
        return SubmitError(f"namespace: {namespace!r} not found on this cluster; create it or choose another (--namespace)")
    if error.status == 404:
        return SubmitError(f"{what}: unknown kind on this cluster; install its CRD ({said})")
    if error.status == 401:
        return SubmitError(f"{what}: the API server rejected the credentials; log in again ({said})")
    missing = _MISSING.search(said)
    if missing is not None:
        kind, field = _MISSING_KINDS[(missing["kind"] or missing["kind2"]).lower()]
        name = missing["after"] or missing["before"]
        return SubmitError(f"{field}: {name!r} is not allowed; expected a {kind} that exists on this cluster: {said}")
    if "exceeded quota" in said:
        return SubmitError(f"resources: {what} exceeds the quota of namespace {namespace}: {said}")
    if "admission webhook" in said or "admission policy" in said.lower() or "PodSecurity" in said:
        return SubmitError(f"{what}: rejected by an admission check of the cluster: {said}")
    if error.status == 403 and _NO_RIGHT.search(said) is None:
        return SubmitError(f"{what}: rejected by the cluster: {said or error}")
    if error.status == 403:
        return SubmitError(f"{what}: not allowed in namespace {namespace}: {said}; {_ROLE}")
    return SubmitError(f"{what}: rejected by the API server: {said or error}")


def action_error(error: BackendError, *, what: str) -> ActionError:
    """Return why something could not be created; fatal where trying again cannot help, waiting where only room is missing."""
    if not isinstance(error, ApiError):
        return ActionError(f"{what}: {error}")
    reason = f"{what}: {error.said or error}"
    if "exceeded quota" in error.said:
        hopeless = never_fits(error.said)
        return ActionError(reason, fatal=hopeless, waits=not hopeless)
    return ActionError(reason, fatal=not error.transient)


def never_fits(said: str) -> bool:
    """Return whether a quota's refusal asks for more than the quota would give to anybody."""
    found = _QUOTA.search(said)
    if found is None:
        return False
    requested, limited = _amounts(found["requested"]), _amounts(found["limited"])
    return any(amount > limited.get(resource, float("inf")) for resource, amount in requested.items())


def _amounts(text: str) -> dict[str, float]:
    pairs = (part.strip().partition("=") for part in text.split(","))
    return {resource: amount for resource, _, quantity in pairs if (amount := _amount(quantity)) is not None}


def _amount(quantity: str) -> float | None:
    found = _QUANTITY.fullmatch(quantity.strip())
    if found is None or (found[2] and found[2] not in _SUFFIXES):
        return None
    return float(found[1]) * _SUFFIXES.get(found[2], 1.0)
