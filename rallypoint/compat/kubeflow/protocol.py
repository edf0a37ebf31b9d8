"""What a trainer says over Kubeflow Trainer's status protocol, and whether it may. Pure: bytes in, values or a refusal out.

Kubeflow's controller tells a training process by three variables where to say how far it is, and HuggingFace's `Trainer` (since
transformers 5) says it without a line in the script. The message is a POST of JSON with a bearer's token:

```
{"trainerStatus": {"progressPercentage": 40, "estimatedRemainingSeconds": 90, "lastUpdatedTime": "...",
                   "metrics": [{"name": "loss", "value": "0.31"}, {"name": "current_step", "value": "200"}]}}
```

Each worker is given an address of its own, with the round in it: what a worker of an older round says is refused.
"""

from __future__ import annotations

import hmac
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rallypoint.wire.codec import WireError
from rallypoint.wire.progress import MAX_STEP, METRICS_BYTES
from rallypoint.wire.sanitize import clean_text, parse

__all__ = [
    "BODY_LIMIT",
    "HEAD_LIMIT",
    "TOKEN",
    "URL",
    "Refused",
    "Request",
    "TrainerStatus",
    "merged",
    "place_of",
    "read_head",
    "read_status",
    "told_env",
    "url_path",
]

#: What a training process looks for, as Kubeflow Trainer and transformers released it.
URL = "KUBEFLOW_TRAINER_SERVER_URL"
TOKEN = "KUBEFLOW_TRAINER_SERVER_TOKEN"
_OFF = "DISABLE_KUBEFLOW_INTEGRATION"

#: Bytes of a request's head and of its body.
HEAD_LIMIT = 8192
BODY_LIMIT = 16384

_STEP, _EPOCH = "current_step", "current_epoch"


class Refused(Exception):  # noqa: N818  it is an answer
    """A request that is not obeyed; `status` is HTTP's word for why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(frozen=True, kw_only=True)
class TrainerStatus:
    """What a trainer said: its step, where it told one, and numbers by name."""

    step: int | None = None
    metrics: dict[str, float] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, kw_only=True)
class Request:
    """The head of a request that may speak: whose it is, and how many bytes it has to say."""

    round: int
    local_rank: int
    length: int


def told_env(environ: Mapping[str, str], url: str, token_file: str) -> dict[str, str]:
    """Return what a worker with this environment is told; nothing where somebody else listens, or nobody is to."""
    if environ.get(URL) or environ.get(_OFF, "").upper() == "TRUE":
        return {}
    told = {URL: url, TOKEN: token_file}
    if any(environ.get(name) for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")):
        around = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
        told["no_proxy"] = ",".join(filter(None, (around, "127.0.0.1")))
    return told


def url_path(round_: int, local_rank: int) -> str:
    """Return the path at which one worker of one round may speak."""
    return f"/v1/rounds/{round_}/workers/{local_rank}/status"


def place_of(path: str) -> tuple[int, int]:
    """Return the round and the local rank of a path; raises `Refused` for another."""
    parts = path.split("/")
    if len(parts) == 7 and path.isascii() and parts[3].isdecimal() and parts[5].isdecimal() and len(path) < 64:
        place = int(parts[3]), int(parts[5])
        if path == url_path(*place):
            return place
    raise Refused(404, "unknown path")


def read_head(head: bytes, token: str) -> Request:
    """Return who speaks; raises `Refused` for whoever may not, and for what is no such request.

    `head`: up to and without the empty line.
    """
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise Refused(400, "the protocol of the request is not HTTP/1")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    # Before all else: who has no token learns nothing, not even what there is.
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), token.encode()):
        raise Refused(401, "the request has no token or a wrong token")
    round_, local_rank = place_of(words[1])
    if words[0] != "POST":
        raise Refused(405, f"HTTP method {words[0][:20]!r} is not allowed; expected POST")
    length = headers.get("content-length", "")
    if not (length.isascii() and length.isdecimal()) or len(length) > 9:
        raise Refused(411, "the Content-Length header is missing")
    if int(length) > BODY_LIMIT:
        raise Refused(413, f"the body of the request exceeds {BODY_LIMIT} bytes")
    return Request(round=round_, local_rank=local_rank, length=int(length))


def read_status(body: bytes) -> TrainerStatus:
    """Return what a message says; raises `WireError` for one that is none.

    Of the metrics those are taken that are numbers, a loss before all others, as many as a worker may report otherwise.
    """
    try:
        message = parse(body)
    except ValueError as error:
        raise WireError("message", f"{len(body)} bytes", "JSON") from error
    status = message.get("trainerStatus") if isinstance(message, dict) else None
    if not isinstance(status, dict):
        raise WireError("trainerStatus", type(status).__name__, "an object")
    numbers = _numbers(status.get("metrics"))
    step, epoch = numbers.pop(_STEP, None), numbers.pop(_EPOCH, None)
    told: dict[str, float] = {}
    for name, key in (("progress_percent", "progressPercentage"), ("eta_seconds", "estimatedRemainingSeconds")):
        value = _number(status.get(key, ""))
        if value is not None and math.isfinite(value):
            told[name] = value
    if epoch is not None and math.isfinite(epoch):
        told["epoch"] = epoch
    return TrainerStatus(step=None if step is None else _step(step), metrics=_bounded({**numbers, **told}))


def _step(number: float) -> int | None:
    """Return a step, None for a negative one, which a trainer reports before its first; raises `WireError`."""
    if not number <= MAX_STEP or math.isinf(number):
        raise WireError(_STEP, number, f"a whole number from 0 to {MAX_STEP}")
    return None if number < 0 else int(number)


def merged(old: TrainerStatus, new: TrainerStatus) -> TrainerStatus:
    """Return what is known after `new`: what it leaves out keeps its last value."""
    step = old.step if new.step is None else new.step
    return TrainerStatus(step=step, metrics=_bounded({**old.metrics, **new.metrics}))


def _numbers(listed: Any) -> dict[str, float]:
    if listed is None:
        return {}
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise WireError("trainerStatus.metrics", type(listed).__name__, "a list of objects with name and value")
    numbers: dict[str, float] = {}
    for each in listed:
        name, value = each.get("name"), _number(each.get("value"))
        if isinstance(name, str) and name and value is not None:
            numbers[clean_text(name, METRICS_BYTES)] = value
    return numbers


def _number(value: object) -> float | None:
    """Return a number, also one that is given as text, and one that is not finite; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _bounded(numbers: Mapping[str, float]) -> dict[str, float]:
    """Return as many as a report may have."""
    ours = ("eta_seconds", "progress_percent", "epoch", "total_steps")
    kept: dict[str, float] = {}
    size = 2
    for name in sorted(numbers, key=lambda name: (name not in ours, "loss" not in name.lower())):
        size += len(json.dumps({name: numbers[name]}))
        if size <= METRICS_BYTES:
            kept[name] = numbers[name]
    return kept
