"""Base class of operators whose arguments describe a job."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator

from rallypoint.provider.naming import default_name
from rallypoint.provider.placed import PlacedOperator
from rallypoint.wire.arguments import ambient

if TYPE_CHECKING:
    from airflow.sdk import Context

    from rallypoint.job import ElasticJob
    from rallypoint.job.builder import Job, JobBuilder, RoleBuilder

    Buildable = Job | JobBuilder | RoleBuilder[Any]

__all__ = ["FIELDS", "JobArguments", "document_of", "folder_of", "key_of", "notes_of"]

#: Arguments that are keys of the job document, and the names of these keys (Airflow already uses `resources`).
FIELDS = {
    "entrypoint": "entrypoint",
    "args": "args",
    "nodes": "nodes",
    "node_unit": "node_unit",
    "nproc_per_node": "nproc_per_node",
    "env": "env",
    "workdir": "workdir",
    "checkpoint_dir": "checkpoint_dir",
    "image": "image",
    "node_resources": "resources",
    "fault_tolerance": "fault_tolerance",
    "recovery": "recovery",
    "rendezvous": "rendezvous",
    "health": "health",
    "logs": "logs",
}

_BLOCKS = ("node_resources", "fault_tolerance", "recovery", "rendezvous", "health", "logs")

Block = Mapping[str, Any]


class JobArguments(PlacedOperator):
    """A job described by `job`, by the fields below, or by both. All arguments are templated.

    A field overrides the key of the same name in the document. A mapping (a policy block, `env`, `node_resources`) is merged
    key by key. Missing values come from the connection. The job is validated when the task runs, after templates are rendered.

    :param job: the job as a mapping, the path of a YAML or JSON file (relative to the DAG's folder), YAML text, or a
        `JobBuilder` (or its `build()`). Templates inside the file are rendered.
    :param name: name of the job, a DNS label of at most 52 characters. Default: a name that is unique to the task instance; all
        tries share it.
    :param entrypoint: program of each worker: path of a script, `-m module`, or a list (a command).
    :param args: arguments of the entrypoint.
    :param nodes: number of nodes `N`, or `MIN:MAX`.
    :param node_unit: the number of nodes is a multiple of this value.
    :param nproc_per_node: workers per node.
    :param env: environment variables of the workers. In a job with several roles, `env`, `workdir` and `image` apply to each
        role; the role's own values have priority.
    :param workdir: working folder of the workers. Default: the folder of the job file or of the DAG; in a container, the
        working folder of the image.
    :param checkpoint_dir: checkpoint folder, passed to workers as RALLYPOINT_CHECKPOINT_DIR.
    :param image: container image, for backends that run pods.
    :param node_resources: resources of one node; the key `resources` of the document.
    :param fault_tolerance: policy block: retries of the whole job and grace periods.
    :param recovery: policy block: worker restarts and node replacements.
    :param rendezvous: policy block: ports and time limits of the rendezvous.
    :param health: policy block: leases, reports, hang detection and node checks.
    :param logs: policy block: output of the ranks.
    """

    template_fields: Sequence[str] = ("job", "name", *FIELDS)
    # Empty on purpose: Airflow would read each text that ends with an extension as a file, as in `args=["--config", "x.yaml"]`.
    # Only `job` may name a file, which is read when the task runs.
    template_ext: Sequence[str] = ()
    template_fields_renderers: ClassVar[dict[str, str]] = {
        "job": "yaml",
        "args": "py",
        "env": "json",
        **dict.fromkeys(_BLOCKS, "json"),
    }

    def __init__(  # noqa: PLR0913  the words of a job
        self,
        *,
        job: Mapping[str, Any] | str | Buildable | None = None,
        name: str | None = None,
        entrypoint: str | Sequence[str] | Mapping[str, Any] | None = None,
        args: Sequence[str | float] | None = None,
        nodes: int | str | None = None,
        node_unit: int | str | None = None,
        nproc_per_node: int | str | None = None,
        env: Mapping[str, Any] | None = None,
        workdir: str | None = None,
        checkpoint_dir: str | None = None,
        image: str | None = None,
        node_resources: Block | None = None,
        fault_tolerance: Block | None = None,
        recovery: Block | None = None,
        rendezvous: Block | None = None,
        health: Block | None = None,
        logs: Block | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job = document_of(job)
        self._job_written = self.job
        self.name = name
        self.entrypoint = entrypoint
        self.args = args
        self.nodes = nodes
        self.node_unit = node_unit
        self.nproc_per_node = nproc_per_node
        self.env = env
        self.workdir = workdir
        self.checkpoint_dir = checkpoint_dir
        self.image = image
        self.node_resources = node_resources
        self.fault_tolerance = fault_tolerance
        self.recovery = recovery
        self.rendezvous = rendezvous
        self.health = health
        self.logs = logs

    def build_job(self, context: Context) -> ElasticJob:
        """Return the job that the rendered arguments describe, under its name; raises `JobError`."""
        from rallypoint.provider import document as documents  # noqa: PLC0415  brings pydantic, which a DAG file need not pay

        ti = context["ti"]
        document, base = documents.read_source(
            self.job,
            written=self._job_written,
            folder=folder_of(self),
            render=lambda text: self.render_template(text, context),
        )
        document = documents.spelled(document)
        fields = {word: getattr(self, field) for field, word in FIELDS.items()}
        document.update(self._take_place(documents.place_in(document)))
        name = self.name or default_name(**key_of(ti), prefix=str(document.get("name") or ""))
        located = self.locate()
        # On another machine, paths in the job are those of its image.
        based = base if located.site.on_this_machine else None
        environ = ambient(os.environ)
        job = documents.build_job(document, fields, name=name, base=based, defaults=located.defaults, environ=environ)
        return documents.annotate(job, notes_of(ti))

    def _take_place(self, said: Mapping[str, str]) -> dict[str, str]:
        """Use the place in the job document if the task sets none; return the keys of the document that the task overrides."""
        if self.backend is None and self.conn_id is None and said.get("platform"):
            self.backend = said["platform"]
        if self.namespace is None and said.get("namespace"):
            self.namespace = said["namespace"]
        ours = {"platform": self.backend, "namespace": self.namespace}
        return {word: value for word, value in ours.items() if value and said.get(word)}


def document_of(job: Any) -> Any:
    """Return the document of a `JobBuilder`, a `Job` or an `ElasticJob`; everything else as it is. Raises `JobError`.

    A document is the same whenever the DAG file is parsed. Its classes are not imported, because they import pydantic.
    """
    if callable(getattr(type(job), "build", None)):
        job = job.build()
    if not callable(getattr(type(job), "to_document", None)):
        return job
    return job.document if hasattr(type(job), "document") else job.to_document()


def folder_of(operator: BaseOperator) -> Path:
    """Return the folder of an operator's DAG, which relative paths start from."""
    dag = operator.get_dag()
    return Path(dag.folder) if dag is not None else Path.cwd()


def key_of(ti: Any) -> dict[str, Any]:
    """Return the key of a task instance, the same for all tries; `map_index` is -1 for a task that is not mapped."""
    index = -1 if ti.map_index is None else ti.map_index
    return {"dag_id": ti.dag_id, "run_id": ti.run_id, "task_id": ti.task_id, "map_index": index}


def notes_of(ti: Any) -> dict[str, str]:
    """Return the same as annotations."""
    return {f"airflow/{word}": str(value) for word, value in key_of(ti).items()}
