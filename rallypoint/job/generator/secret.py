"""The Secret of an elastic job that is applied by hand: `rallypoint render --secret`. Pure but for the secret itself.

The pods of the job refer to it by name and wait for it, so it can be created after the AppWrapper and be owned by it.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping
from typing import Any

from rallypoint.job.generator.settings import Settings
from rallypoint.wire import env

__all__ = ["KEY", "is_ours", "secret_name", "secret_object", "secret_variable"]

#: Key of the Secret, as in the Secrets of the kubernetes backend.
KEY = "secret"

_SUFFIX = "-rallypoint-run"
_BYTES = 32


def secret_name(settings: Settings) -> str:
    """Return the name of the Secret of an elastic job."""
    return f"{settings.job_name}{_SUFFIX}"


def secret_variable(settings: Settings) -> dict[str, Any]:
    """Return the variable by which the pods refer to it."""
    return {"name": env.SECRET, "valueFrom": {"secretKeyRef": {"name": secret_name(settings), "key": KEY}}}


def is_ours(variable: Mapping[str, Any]) -> bool:
    """Return whether a variable of a pod is such a reference."""
    reference = (variable.get("valueFrom") or {}).get("secretKeyRef") or {}
    return variable.get("name") == env.SECRET and str(reference.get("name", "")).endswith(_SUFFIX)


def secret_object(settings: Settings, *, owner: str = "") -> dict[str, Any]:
    """Return the Secret, with a new secret in it; `owner` is the uid of the AppWrapper with which it is deleted."""
    reference = {
        "apiVersion": "workload.codeflare.dev/v1beta2",
        "kind": "AppWrapper",
        "name": settings.job_name,
        "uid": owner,
        "controller": False,
        "blockOwnerDeletion": False,
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": secret_name(settings),
            **({"namespace": settings.namespace} if settings.namespace else {}),
            **({"ownerReferences": [reference]} if owner else {}),
        },
        "type": "Opaque",
        "immutable": True,
        "data": {KEY: base64.b64encode(secrets.token_hex(_BYTES).encode()).decode()},
    }
