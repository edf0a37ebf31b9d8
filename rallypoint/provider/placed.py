"""Operators and sensors that are about jobs somewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.sdk import BaseOperator

from rallypoint.provider import doors
from rallypoint.provider.connections.locating import Located
from rallypoint.provider.place import PLACE_FIELDS, check_place, place_of

__all__ = ["PlacedOperator"]


class PlacedOperator(BaseOperator):
    """Has the arguments that say where jobs are.

    :param conn_id: a connection of type `rallypoint`, or of Airflow's own type `kubernetes`, that says where jobs are and what
        they have by default; what the operator or the job says itself wins. (templated)
    :param backend: where jobs run: `local` or `kubernetes`; by default what the connection says, and without one `local`.
    :param home: local: folder of the backend's state; by default $RALLYPOINT_HOME or `~/.rallypoint`. (templated)
    :param namespace: kubernetes: where the job's objects are; by default the one of the connection, of the kubeconfig's
        context, or of the pod that the task runs in. (templated)
    :param kubeconfig: kubernetes: path of one, in the place of how the connection reaches its cluster; by default $KUBECONFIG
        or `~/.kube/config`, or else the cluster of the pod that the task runs in. (templated)
    :param cluster_context: kubernetes: which context of the kubeconfig. (templated)
    """

    template_fields: Sequence[str] = PLACE_FIELDS

    def __init__(
        self,
        *,
        conn_id: str | None = None,
        backend: str | None = None,
        home: str | None = None,
        namespace: str | None = None,
        kubeconfig: str | None = None,
        cluster_context: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_place(
            backend, conn_id=conn_id, home=home, namespace=namespace, kubeconfig=kubeconfig, cluster_context=cluster_context
        )
        self.conn_id = conn_id
        self.backend = backend
        self.home = home
        self.namespace = namespace
        self.kubeconfig = kubeconfig
        self.cluster_context = cluster_context

    def locate(self) -> Located:
        """Return where jobs are, by the rendered arguments and the connection as it is now; raises `BackendError`.

        What it returns may hold secrets: it is never kept on the operator.
        """
        return doors.resolve(place_of(self))
