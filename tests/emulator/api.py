"""The verbs of the API on the store, without HTTP: what is accepted, what is refused, and what a stored object gets."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tests.emulator import deletion, strategies, validation
from tests.emulator.bodies import Body, clone, finalizers, meta, stamp
from tests.emulator.errors import ApiError, already_exists, bad_request, conflict, forbidden, invalid, not_found
from tests.emulator.managed import track_update
from tests.emulator.resources import BUILTIN, Resource
from tests.emulator.store import Store, Version

__all__ = ["Api", "Write"]

#: What generated names end with; the real server leaves out vowels too, so that no words come out.
LETTERS = "bcdfghjklmnpqrstvwxz2456789"

#: The fields of the metadata that no caller sets.
SERVERS = ("uid", "creationTimestamp", "generation", "deletionTimestamp", "deletionGracePeriodSeconds", "managedFields")


@dataclass(frozen=True, kw_only=True)
class Write:
    """How a write is meant."""

    dry: bool = False
    manager: str = "unknown"
    """Who writes, as managedFields calls it."""
    applied: bool = False
    """Whether managedFields are in the body already."""


#: May refuse an object that is about to be created by raising ApiError; those under `webhooks` may change it too.
Admission = Callable[[Resource, Body], None]


@dataclass
class Api:
    """The kinds that are served, and what can be done with objects of each."""

    store: Store = field(default_factory=Store)
    kinds: dict[str, Resource] = field(default_factory=lambda: {resource.key: resource for resource in BUILTIN})
    webhooks: list[Admission] = field(default_factory=list)
    admission: list[Admission] = field(default_factory=list)

    def kind(self, key: str) -> Resource:
        return self.kinds[key]

    def get(self, resource: Resource, namespace: str, name: str) -> Version:
        """The object as it is; ApiError 404 where there is none."""
        found = self.store.get(resource.key, namespace, name)
        if found is None:
            raise not_found(resource, name)
        return found

    def create(self, resource: Resource, namespace: str, body: Body, write: Write = Write()) -> Body:
        """Store a new object and return it."""
        body = clone(body)
        self._check_type(resource, namespace, body)
        metadata = meta(body)
        if metadata.get("resourceVersion"):
            raise bad_request("resourceVersion should not be set on objects to be created")
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = metadata["generateName"][:58] + "".join(random.choices(LETTERS, k=5))
        if not metadata.get("name"):
            raise invalid(resource, "", [("metadata.name", "Required value: name or generateName is required")])
        self._check_namespace(resource, namespace, metadata["name"])
        self._dress(resource, namespace, metadata, write)
        strategies.fill(resource, body)
        strategies.keep_status(resource, body)
        for webhook in self.webhooks:
            webhook(resource, body)
        body = self._checked(resource, body)
        if self.store.get(resource.key, namespace, metadata["name"]):
            raise already_exists(resource, metadata["name"])
        for admit in self.admission:
            admit(resource, body)
        return body if write.dry else self.store.put(resource.key, namespace, metadata["name"], body).body

    def _dress(self, resource: Resource, namespace: str, metadata: Body, write: Write) -> None:
        for mine in SERVERS:
            if mine != "managedFields" or not write.applied:
                metadata.pop(mine, None)
        metadata.update(uid=str(uuid.uuid4()), creationTimestamp=stamp())
        if resource.namespaced:
            metadata["namespace"] = namespace
        if resource.generation:
            metadata["generation"] = 1

    def replace(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        body: Body,
        *,
        subresource: str = "",
        write: Write = Write(),
    ) -> Body:
        """Store `body` in the place of what is there, if that is what the caller knows; return what is stored then."""
        old = self.get(resource, namespace, name).body
        new = clone(body)
        self._check_type(resource, namespace, new)
        metadata = meta(new)
        if metadata.get("name", name) != name:
            raise bad_request(f"the name of the object ({metadata['name']}) does not match the name on the URL ({name})")
        if not metadata.get("resourceVersion") and not resource.unconditional:
            raise invalid(resource, name, [("metadata.resourceVersion", "Invalid value: 0x0: must be specified for an update")])
        return self.update(resource, old, new, subresource=subresource, write=write)

    def update(
        self,
        resource: Resource,
        old: Body,
        new: Body,
        *,
        subresource: str = "",
        write: Write = Write(),
    ) -> Body:
        """Store `new`, which belongs to the store from now on, for `old`, unless it is no change at all."""
        was, will = old["metadata"], meta(new)
        name = was["name"]
        if will.get("resourceVersion") not in {None, "", was["resourceVersion"]}:
            raise conflict(
                resource, name, "the object has been modified; please apply your changes to the latest version and try again"
            )
        if will.get("uid") not in {None, "", was["uid"]}:
            why = f"Precondition failed: UID in precondition: {will['uid']}, UID in object meta: {was['uid']}"
            raise conflict(resource, name, why)
        self._keep(resource, old, new, subresource, applied=write.applied)
        strategies.fill(resource, new)
        new = self._checked(resource, new)
        if causes := [] if subresource else strategies.forbidden_changes(resource, old, new):
            raise invalid(resource, name, causes)
        if resource.generation and _counted(resource, old) != _counted(resource, new):
            new["metadata"]["generation"] = was.get("generation", 0) + 1
        if not write.applied:
            track_update(resource, old, new, write.manager, subresource)
        if new == old:
            return old
        return new if write.dry else self._commit(resource, new)

    def _commit(self, resource: Resource, new: Body) -> Body:
        metadata = new["metadata"]
        place = resource.key, metadata.get("namespace", ""), metadata["name"]
        over = "deletionTimestamp" in metadata and not finalizers(new) and not metadata.get("deletionGracePeriodSeconds")
        return self.store.remove(*place, new).body if over else self.store.put(*place, new).body

    def _keep(self, resource: Resource, old: Body, new: Body, subresource: str, *, applied: bool) -> None:
        """Take from `old` what this request may not change."""
        new["apiVersion"], new["kind"] = resource.api_version, resource.kind
        if subresource == "status":
            kept = {key: value for key, value in clone(old).items() if key != "status"}
            if not resource.custom:  # the status of a built-in object brings labels and annotations along
                for mine in ("labels", "annotations"):
                    _set(kept["metadata"], mine, new["metadata"].get(mine))
            status, managed = new.get("status"), new["metadata"].get("managedFields")
            new.clear()
            new.update(kept)
            _set(new, "status", status)
            if applied:
                _set(new["metadata"], "managedFields", managed)
            return
        if resource.has_status:
            _set(new, "status", clone(old.get("status")))
        for mine in ("name", "namespace", "resourceVersion", "generateName", *SERVERS):
            if mine != "managedFields" or not applied:
                _set(new["metadata"], mine, clone(old["metadata"].get(mine)))
        if "deletionTimestamp" in old["metadata"] and not set(finalizers(new)) <= set(finalizers(old)):
            causes = [("metadata.finalizers", "Forbidden: no new finalizers can be added if the object is being deleted")]
            raise invalid(resource, old["metadata"]["name"], causes)

    def delete(self, resource: Resource, namespace: str, name: str, options: Body | None = None, *, dry: bool = False) -> Body:
        """Delete, or begin to: the object as it is then, or as it was last."""
        version = self.get(resource, namespace, name)
        step = deletion.decide(resource, version.body, options or {})
        if dry or step.body is None:
            return version.body if step.body is None else step.body
        if step.gone:
            return self.store.remove(resource.key, namespace, name, step.body).body
        return self.store.put(resource.key, namespace, name, step.body).body

    def _check_type(self, resource: Resource, namespace: str, body: Body) -> None:
        if not isinstance(body, dict):
            raise bad_request("the body of the request is no object")
        kind, version = body.setdefault("kind", resource.kind), body.setdefault("apiVersion", resource.api_version)
        if (kind, version) != (resource.kind, resource.api_version):
            raise bad_request(
                f"{version}, Kind={kind} does not match the kind of the URL: {resource.api_version}, {resource.kind}"
            )
        given = meta(body).get("namespace")
        if given and given != namespace:
            raise bad_request(
                f"the namespace of the provided object does not match the namespace sent on the request ({given})"
            )

    def _check_namespace(self, resource: Resource, namespace: str, name: str) -> None:
        if not resource.namespaced:
            return
        home = self.get(self.kind("namespaces"), "", namespace).body
        if home["metadata"].get("deletionTimestamp"):
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise forbidden(resource, name, why)

    def _checked(self, resource: Resource, body: Body) -> Body:
        causes = list(validation.metadata_causes(resource, body))
        if resource.admit:
            body, found = resource.admit(body)
            causes += found
        else:
            causes += validation.spec_causes(resource, body)
        if causes:
            raise invalid(resource, body["metadata"]["name"], causes)
        return body

    def quietly(self, steps: Iterable[Callable[[], object]]) -> None:
        """Take steps of a controller, whose refusals mean that somebody else was quicker."""
        for step in steps:
            try:
                step()
            except ApiError as error:
                if error.code not in {404, 409}:
                    raise


def _set(body: Body, key: str, value: object) -> None:
    if value is None:
        body.pop(key, None)
    else:
        body[key] = value


def _counted(resource: Resource, body: Body) -> Body:
    """What of an object its generation counts: the spec, or all but metadata and status of a custom resource."""
    return {key: value for key, value in body.items() if key not in {"metadata", "status"}} if resource.custom else body["spec"]
