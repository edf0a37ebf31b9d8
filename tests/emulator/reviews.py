"""Questions that are asked by creating an object which nobody keeps: who am I, and what may I do?"""

from __future__ import annotations

from typing import Any

from tests.emulator.access import Access, User
from tests.emulator.bodies import Body
from tests.emulator.paths import Asked

__all__ = ["answer"]


def answer(asked: Asked, user: User, access: Access, body: Any) -> Body | None:
    """The reviewed object; None where the request is for another kind."""
    told: Body
    if asked.resource.plural == "selfsubjectreviews":
        told = {"userInfo": {"username": user.name, "groups": list(user.groups)}}
    elif asked.resource.plural == "selfsubjectaccessreviews":
        wanted = ((body or {}).get("spec") or {}).get("resourceAttributes") or {}
        resource = wanted.get("resource", "") + (f"/{wanted['subresource']}" if wanted.get("subresource") else "")
        place = wanted.get("namespace", ""), wanted.get("name", "")
        told = {"allowed": access.allowed(user, wanted.get("verb", ""), wanted.get("group", ""), resource, *place)}
    else:
        return None
    kind = {"kind": asked.resource.kind, "apiVersion": asked.resource.api_version, "metadata": {}}
    return {**kind, "spec": (body or {}).get("spec") or {}, "status": told}
