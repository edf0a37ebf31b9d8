"""`Job`: the result of `build()`. It is frozen; its document can be saved, and `submit()` runs it."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from typing_extensions import Unpack

from rallypoint.job.builder import settings as options
from rallypoint.job.builder.launch import launch
from rallypoint.job.document import write_yaml
from rallypoint.job.errors import JobError, Problem
from rallypoint.job.model import ElasticJob

__all__ = ["Job"]

_STANDS_FOR_NAME = "job"


@dataclass(frozen=True)
class Job:
    """A valid job, ready to be submitted under any name.

    Attributes:
        text: the job document without a name, as JSON.
    """

    text: str

    @classmethod
    def of(cls, document: dict[str, Any], wrong: Iterable[Problem] = ()) -> Job:
        """Return the job of a document without a name; raises `JobError` for `wrong` and for what the document has."""
        found = list(wrong)
        try:
            ElasticJob.model_validate({"name": _STANDS_FOR_NAME, **document})
        except JobError as error:
            known = {problem.path for problem in found}
            found += [problem for problem in error.problems if problem.path not in known]
        if found:
            raise JobError(found)
        return cls(text=json.dumps(document))

    @property
    def document(self) -> dict[str, Any]:
        """The job document without a name."""
        document: dict[str, Any] = json.loads(self.text)
        return document

    def to_document(self, job_name: str | None = None, **settings: Unpack[options.SubmitSettings]) -> dict[str, Any]:
        """Return the job document, with the settings of `submit` that are given.

        Without a name it is `dlrover-` and the beginning of a digest of the document, so it is always the same.
        """
        given = options.read({**settings, **({} if job_name is None else {"job_name": job_name})}, {})
        digest = hashlib.sha256(self.text.encode()).hexdigest()[:8]
        return given.applied({"name": given.name or f"dlrover-{digest}", **self.document})

    def to_yaml(self, job_name: str | None = None, **settings: Unpack[options.SubmitSettings]) -> str:
        """Return `to_document` as YAML."""
        return write_yaml(self.to_document(job_name, **settings))

    def submit(
        self,
        job_name: str | None = None,
        blocking: bool = True,  # noqa: FBT001, FBT002  DLRover has it so
        **settings: Unpack[options.SubmitArguments],
    ) -> int:
        """Run the job where `rallypoint submit` runs jobs ($RALLYPOINT_BACKEND, or as processes of this machine).

        A second submission of a job that runs changes nothing; if it is `blocking`, it waits for the end of that job.

        Args:
            job_name: of the job; by default DLROVER_UNIFIED_JOB_NAME, or `dlrover-` and a random number.
            blocking: wait until the job ends. Ctrl-C then leaves the job running and raises `KeyboardInterrupt`.
            settings: see docs/guides/roles.md; each is also a variable DLROVER_UNIFIED_<NAME>. `backend`, `namespace` and
                the other options of `rallypoint submit` say where the job runs, or `conn_id`, an Airflow connection.

        Returns:
            0 if the job succeeded (not blocking: if it was stored and started), 1 if not.

        Raises:
            JobError: names every setting that is wrong.

        """
        place, left = options.read_place(settings)
        given = options.from_environment({**left, **({} if job_name is None else {"job_name": job_name})})
        # The defaults of a connection come before those of `submit`.
        whole = given if "conn_id" in place else given.with_defaults()
        document = whole.applied({"name": given.name or _random_name(), **self.document})
        ElasticJob.model_validate(document)
        return launch(document, blocking=blocking, place=place)


def _random_name() -> str:
    return f"dlrover-{secrets.token_hex(3)}"
