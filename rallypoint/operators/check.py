"""`NodeCheckOperator`: try nodes before anything trains on them."""

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

#: What may make the task fail.
_FAIL_ON = ("fault", "straggler", "never")

#: Where the findings of a check stand in XCom, beside the return value.
XCOM_KEYS = ("faulty_hosts", "stragglers", "bandwidth", "bandwidth_svg")


class NodeCheckOperator(JobArguments, JobOwner):
    """Check the nodes of a job without training on them: pairs compute and exchange data, and whoever is at fault is named.

    Takes the arguments of `JobArguments`, which say which nodes (`job`, or `nodes` with `image` and `node_resources`), those of
    `JobOwner`, which say where, and these.

    :param level: 1 tries pairs; 2 then tries all good nodes at once. (templated)
    :param all_pairs: try each node with each other, for a whole matrix of bandwidths.
    :param round_timeout: how long a round may take, as a duration. (templated)
    :param fail_on: `fault` fails the task when a node is at fault or unclear, `straggler` also when one is slow, `never` leaves
        it to whoever reads the result.

    Returns, and pushes to XCom under the same keys, beside `nodes`, `check` and `whole` of the return value:

    - `faulty_hosts`: machines at fault, `stragglers` machines that are slow.
    - `bandwidth`: the matrix of bytes per second (docs/guides/node-check.md).
    - `bandwidth_svg`: that matrix as a picture, an SVG document.

    Fails without a retry, by `NodesRefused`, as `fail_on` says; the result is in XCom then, too.
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
            raise OptionError("wait_for_completion", False, "True: what is found is what the task is for")
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
            self.entrypoint = ["true"]  # never started: the job is over when its nodes are checked
        job = self.build_job(context)
        document = as_check(
            job.to_document(), level=int(level), all_pairs=self.all_pairs, timeout=self.round_timeout, name=job.name
        )
        return load_job(document, based=False)

    def returned(self, summary: dict[str, Any]) -> Any:
        """Return what was found, in the place of the job's summary."""
        from rallypoint.backends.check_picture import matrix, picture, read_check  # noqa: PLC0415  as above
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
        """Push what was found to XCom, and refuse nodes that must not train; raises `NodesRefused`."""
        if self.do_xcom_push:
            for key in XCOM_KEYS:
                context["ti"].xcom_push(key=key, value=found[key])
        bad = found["faulty_hosts"] if self.fail_on != "never" else []
        slow = found["stragglers"] if self.fail_on == "straggler" else []
        if bad or slow:
            words = [f"at fault: {', '.join(bad)}"] if bad else []
            words += [f"slow: {', '.join(slow)}"] if slow else []
            raise NodesRefused(f"{found['nodes']} nodes were checked; {'; '.join(words)}")
        self.log.info("%d nodes were checked: no node is at fault", found["nodes"])
        return found

    def execute(self, context: Context) -> Any:
        """Check, and tell."""
        return self.tell(context, super().execute(context))

    def execute_complete(self, context: Context, event: Any = None) -> Any:
        """As `execute`, after the triggerer has waited."""
        return self.tell(context, super().execute_complete(context, event))
