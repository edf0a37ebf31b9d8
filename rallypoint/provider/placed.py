"""Base class of operators and sensors that access jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.sdk import BaseOperator

from rallypoint.provider import backend_access
from rallypoint.provider.connections.locating import Located
from rallypoint.provider.place import PLACE_FIELDS, check_place, place_of

__all__ = ["PlacedOperator"]


class PlacedOperator(BaseOperator):
    """Base class of operators and sensors that access jobs.

    :param conn_id: connection of type `rallypoint` or `kubernetes` with the backend and default values; arguments of the
        operator and of the job take precedence. (templated)
    :param backend: `local` or `kubernetes`. Default: the backend of the connection, or `local`.
    :param home: local: folder of the jobs. Default: $RALLYPOINT_HOME or `~/.rallypoint`. (templated)
    :param namespace: kubernetes: namespace of the job. Default: the namespace of the connection, of the kubeconfig context, or
        of the task's pod. (templated)
    :param kubeconfig: kubernetes: path of a kubeconfig; overrides the cluster of the connection. Default: $KUBECONFIG,
        `~/.kube/config`, or the cluster of the task's pod. (templated)
    :param cluster_context: kubernetes: context of the kubeconfig. (templated)
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
        """Return the location of jobs, from the rendered arguments and the present connection; raises `BackendError`.

        The result may contain secrets, so it is never stored on the operator.
        """
        return backend_access.resolve(place_of(self))
