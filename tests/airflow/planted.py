"""Secrets that are planted before an Airflow starts, and a search for them in everything that it keeps."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy

from rallypoint.backends.kubernetes.rbac import rbac
from tests.airflow.processes import processes
from tests.emulator.options import Options
from tests.emulator.running import Running, kubeconfig, running

__all__ = ["Planted", "found_in_database", "found_in_files", "found_in_titles", "planted"]

#: What stands in the kubeconfig beside the token that counts.
_INLINE = "canary-kubeconfig-51c7e0"

_NAMESPACE = "training"


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A cluster that is opened by `secrets` alone, and the variables by which Airflow's connections hold them."""

    cluster: Running
    secrets: tuple[str, ...]
    variables: Mapping[str, str]

    def objects(self) -> str:
        """Return all that the cluster holds of jobs, as text."""
        kinds = ("configmaps", "secrets", "pods", "events", "services", "serviceaccounts")
        paths = [f"/api/v1/namespaces/{_NAMESPACE}/{kind}" for kind in kinds]
        return repr([self.cluster.request("GET", path, token=self.cluster.admin_token) for path in paths])


@contextlib.contextmanager
def planted() -> Iterator[Planted]:
    """Have such a cluster while the context lasts."""
    with running(Options(rbac=True, namespaces=(_NAMESPACE,))) as cluster:
        for manifest in rbac(_NAMESPACE):
            group = manifest["apiVersion"]
            root = f"/api/{group}" if group == "v1" else f"/apis/{group}"
            path = f"{root}/namespaces/{_NAMESPACE}/{manifest['kind'].lower()}s"
            code, answer = cluster.request("POST", path, manifest, token=cluster.admin_token)
            assert code < 300 or code == 409, (path, answer)
        extra = {"platform": "kubernetes", "kubernetes_conn_id": "prod", "namespace": _NAMESPACE, "image": "train:1"}
        connections = {
            "CANARY": {"conn_type": "rallypoint", "password": cluster.admin_token, "extra": extra},
            "PROD": {"conn_type": "kubernetes", "extra": {"kube_config": kubeconfig(cluster.url, _INLINE)}},
        }
        variables = {f"AIRFLOW_CONN_{name}": json.dumps(connection) for name, connection in connections.items()}
        yield Planted(cluster=cluster, secrets=(cluster.admin_token, _INLINE), variables=variables)


def found_in_database(url: str, words: tuple[str, ...]) -> dict[str, set[str]]:
    """Return which tables of a database have which words, in any column of any row."""
    engine = sqlalchemy.create_engine(url)
    found: dict[str, set[str]] = {}
    try:
        with engine.connect() as connection:
            for table in sqlalchemy.inspect(engine).get_table_names():
                rows = connection.execute(sqlalchemy.text(f'select * from "{table}"'))
                text = "\n".join(_readable(value) for row in rows for value in row)
                if had := {word for word in words if word in text}:
                    found[table] = had
    finally:
        engine.dispose()
    return found


def found_in_files(folder: Path, words: tuple[str, ...]) -> dict[str, set[str]]:
    """Return which files below a folder have which words; one that goes away meanwhile is not there."""
    found: dict[str, set[str]] = {}
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            data = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
            if had := {word for word in words if word.encode() in data}:
                found[str(path.relative_to(folder))] = had
    return found


def found_in_titles(words: tuple[str, ...]) -> dict[str, set[str]]:
    """Return which processes were started with which words among their arguments."""
    titles = [one.title for one in processes()]
    return {title: had for title in titles if (had := {word for word in words if word in title})}


def _readable(value: object) -> str:
    return bytes(value).decode(errors="replace") if isinstance(value, (bytes, bytearray, memoryview)) else str(value)
