"""`NodeCheckOperator`: check nodes before training on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rallypoint.operators.arguments import JobArguments
from rallypoint.operators.owner import JobOwner
from rallypoint.provider.errors import NodesRefused, OptionError, one_of

if TYPE_CHECKING:
    from airflow.sdk import Context

    from rallypoint.job import ElasticJob
    from rallypoint.provider.function import FunctionJob

__all__ = ["NodeCheckOperator"]

#: Values of `fail_on`.
_FAIL_ON = ("fault", "straggler", "never")

#: XCom keys of the results of a check, beside the return value.
XCOM_KEYS = ("faulty_hosts", "stragglers", "bandwidth", "bandwidth_svg")


class NodeCheckOperator(JobArguments, JobOwner):
    """Check the nodes of a job without training: pairs of nodes compute and exchange data, and faulty nodes are reported.

    Also takes the arguments of `JobArguments` (`job`, or `nodes` with `image` and `node_resources`) and of `JobOwner`.

    :param level: 1 checks pairs; 2 also checks all healthy nodes together. (templated)
    :param all_pairs: check every pair of nodes, which gives a full bandwidth matrix.
    :param round_timeout: timeout of one round, as a duration. (templated)
    :param fail_on: `fault` fails the task if a node is faulty or unclear, `straggler` also if one is slow; `never`: no failure.

    Returns and pushes to XCom, beside `nodes`, `check` and `whole`:

    - `faulty_hosts` and `stragglers`: lists of host names.
    - `bandwidth`: matrix in bytes per second (docs/guides/node-check.md).
    - `bandwidth_svg`: the matrix as an SVG picture.

    Raises `NodesRefused` (no retry) according to `fail_on`; the result is in XCom in this case as well.
    """

    template_fields: Sequence[str] = (
        *("level", "round_timeout"),
        *JobArguments.template_fields,
        *JobOwner.template_fields,
    )
    ui_color = "#e8f9ee"

    def __init__(
        self,
        *,
        level: int | str = 1,
        all_pairs: bool = False,
        round_timeout: str | None = None,
        fail_on: str = "fault",
        **kwargs: Any,
    ) -> None:
        one_of("fail_on", fail_on, _FAIL_ON)
        if kwargs.get("wait_for_completion") is False:
            raise OptionError("wait_for_completion", False, "True, because the task returns the result")
        super().__init__(**kwargs)
        self.level = level
        self.all_pairs = all_pairs
        self.round_timeout = round_timeout
        self.fail_on = fail_on

    def build_work(self, context: Context) -> ElasticJob | FunctionJob:
        """Return the job that checks the nodes of the job that the arguments describe; raises `JobError`."""
        from rallypoint.job import load_job  # noqa: PLC0415  brings pydantic, which a DAG file need not pay for
        from rallypoint.job.check import as_check  # noqa: PLC0415

        level = str(self.level)
        if level not in {"1", "2"}:
            raise OptionError("level", self.level, "1 or 2")
        if self.entrypoint is None and self.job is None:
            self.entrypoint = ["true"]  # never started: the job ends when its nodes are checked
        job = self.build_job(context)
        document = as_check(
            job.to_document(), level=int(level), all_pairs=self.all_pairs, timeout=self.round_timeout, name=job.name
        )
        return load_job(document, based=False)

    def returned(self, summary: dict[str, Any]) -> Any:
        """Return the result of the check instead of the summary of the job."""
        from rallypoint.report.check_picture import matrix, picture, read_check  # noqa: PLC0415  as above
        from rallypoint.wire import codec  # noqa: PLC0415
        from rallypoint.wire.check import NodeVerdict  # noqa: PLC0415

        check = read_check(summary["result"])
        faulty = [*check.named(NodeVerdict.FAULT), *check.named(NodeVerdict.UNKNOWN)]
        return {
            "job": summary["job"],
            "nodes": check.count,
            "faulty_hosts": [found.host for found in faulty],
            "stragglers": [found.host for found in check.named(NodeVerdict.STRAGGLER)],
            "bandwidth": matrix(check),
            "bandwidth_svg": picture(check),
            "whole": codec.to_json(check.whole),
            "check": codec.to_json(check),
        }

    def tell(self, context: Context, found: dict[str, Any]) -> dict[str, Any]:
        """Push the result to XCom; raises `NodesRefused` for nodes that must not train."""
        if self.do_xcom_push:
            for key in XCOM_KEYS:
                context["ti"].xcom_push(key=key, value=found[key])
        bad = found["faulty_hosts"] if self.fail_on != "never" else []
        slow = found["stragglers"] if self.fail_on == "straggler" else []
        if bad or slow:
            words = [f"faulty: {', '.join(bad)}"] if bad else []
            words += [f"slow: {', '.join(slow)}"] if slow else []
            raise NodesRefused(f"{found['nodes']} nodes checked; {'; '.join(words)}")
        number = found["nodes"]
        self.log.info("All %d nodes passed the node check", number)
        return found

    def execute(self, context: Context) -> Any:
        """Check the nodes and push the result."""
        return self.tell(context, super().execute(context))

    def execute_complete(self, context: Context, event: Any = None) -> Any:
        """Push the result after the trigger has finished."""
        return self.tell(context, super().execute_complete(context, event))
