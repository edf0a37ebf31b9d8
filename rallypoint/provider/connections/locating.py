"""Combine the arguments of a task and its connections to the location of jobs. Pure."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from rallypoint.backends.credentials import Credentials
from rallypoint.backends.site import KINDS, KUBERNETES, LOCAL, RAY, Site, shown
from rallypoint.provider.connections.connection import NO_DEFAULTS, Defaults, Settings
from rallypoint.provider.connections.kubernetes_connection import KubernetesSettings
from rallypoint.provider.place import Place
from rallypoint.wire.errors import RallypointError

__all__ = ["Located", "PlaceError", "locate"]


class PlaceError(RallypointError):
    """The arguments of a task conflict with its connection, or a connection cannot be used for the task."""


@dataclass(frozen=True, kw_only=True)
class Located:
    """Location of a task's job, with credentials and defaults.

    `credentials` are for opening the backend at once, and are not stored.
    """

    site: Site
    credentials: Credentials = field(default_factory=Credentials)
    defaults: Defaults = NO_DEFAULTS

    def kept(self, place: Place) -> Place:
        """Return the `place` that a deferred task stores, with the values of the connection that are needed to find the job.

        So a later change of the connection does not lose running jobs. Its `runtime_env`, which may contain a secret, is read
        from the connection by each process that submits a job.
        """
        site = self.site
        return dataclasses.replace(
            place,
            backend=site.kind,
            home=site.home,
            namespace=site.namespace,
            address=site.address,
            storage=site.storage,
        )


def locate(place: Place, settings: Settings | None = None, cluster: KubernetesSettings | None = None) -> Located:
    """Return the location: arguments of the task override its connection, which overrides the connection of the cluster.

    Args:
        place: arguments of the task.
        settings: its connection of type `rallypoint`, or None.
        cluster: the connection of type `kubernetes` that one of them names, or None.

    Raises:
        PlaceError: they conflict, or the task sets an argument that its backend does not have.
    """
    said = KUBERNETES if cluster is not None else LOCAL
    platform = settings.platform if settings is not None else said
    if place.backend and place.conn_id and place.backend != platform:
        raise PlaceError(
            f"backend: {place.backend!r} is not allowed with connection {place.conn_id!r}, whose platform is "
            f"{platform!r}; omit the backend or the connection"
        )
    kind = place.backend or platform
    _check(place, kind)
    defaults = NO_DEFAULTS if settings is None else settings.defaults
    if kind == LOCAL:
        home = place.home or (settings.home if settings is not None else "")
        return Located(site=Site(kind=kind, home=home), defaults=defaults)
    if kind == RAY:
        return _on_ray(place, settings, defaults)
    namespace = place.namespace or _namespace(settings, cluster)
    if place.kubeconfig:
        # Another kubeconfig is another cluster, for which the values of the connections do not apply.
        site = Site(kind=kind, namespace=namespace, context=place.context, kubeconfig=place.kubeconfig)
        return Located(site=site, defaults=defaults)
    reached = cluster or KubernetesSettings(conn_id="")
    context = place.context or reached.context
    if context and reached.credentials.in_cluster:
        raise PlaceError(f"cluster_context: {context!r} is not allowed, because connection {reached.conn_id!r} sets in_cluster")
    token = settings.token if settings is not None else ""
    return Located(
        site=Site(kind=kind, namespace=namespace, context=context, kubeconfig=reached.kubeconfig),
        credentials=dataclasses.replace(reached.credentials, token=token),
        defaults=defaults,
    )


def _on_ray(place: Place, settings: Settings | None, defaults: Defaults) -> Located:
    """Return a place on a Ray cluster. A token is used only for the cluster of its connection."""
    known = settings or Settings(conn_id="", platform=RAY)
    site = Site(
        kind=RAY,
        address=place.address or known.address,
        namespace=place.namespace or known.namespace,
        storage=place.storage or known.storage,
        runtime_env=known.runtime_env,
    )
    if known.token and place.address and place.address != known.address:
        raise PlaceError(
            f"connection {place.conn_id!r}: address: {shown('address', known.address)} is not allowed for this job, "
            f"which is on the cluster {shown('address', place.address)}; use a connection with the address of the job's cluster"
        )
    return Located(
        site=site,
        # A token in the environment is only for the address in the environment, and for no address of a connection.
        credentials=Credentials(
            token=known.token, own_token=bool(site.address), verify_ssl=known.verify_ssl, ca_cert=known.ca_cert
        ),
        defaults=defaults,
    )


def _check(place: Place, kind: str) -> None:
    for word in sorted({word for words in KINDS.values() for word in words} - {*KINDS[kind]}):
        if value := getattr(place, word, ""):
            known = ", ".join(KINDS[kind])
            if place.conn_id:
                raise PlaceError(
                    f"{word}: {shown(word, value)} is not allowed with connection {place.conn_id!r}, whose platform is "
                    f"{kind!r}; expected only the arguments {known}"
                )
            raise PlaceError(
                f"{word}: {shown(word, value)} is not allowed with backend {kind!r}; expected only the arguments {known}"
            )


def _namespace(settings: Settings | None, cluster: KubernetesSettings | None) -> str:
    own = settings.namespace if settings is not None else ""
    return own or (cluster.namespace if cluster is not None else "")
