"""What a wrong job says: the path in the document, the value, and what is allowed."""

from __future__ import annotations

import copy
import pickle
import time
from typing import Any

import pytest

from rallypoint.job import ElasticJob, JobError, load_job
from rallypoint.job.errors import Problem
from rallypoint.wire.errors import RallypointError

GOOD: dict[str, Any] = {"name": "digits", "entrypoint": "train.py"}

HEALTH = (
    "node_lease, report_interval, node_unreachable, hang_downtime, hang_detection, hang_learning, precheck, "
    "network_check, comm_perf_test, exclude_straggler, "
    "precheck_timeout, precheck_all_pairs, precheck_only, precheck_program, pre_check_ops, xpu_type, metrics_port"
)
OPS = (
    'a list of (module, class, enabled), such as [("my.checks", "DiskCheck", True)]; a class whose enabled is false is skipped'
)
NODES = "a number of nodes N or MIN:MAX with 1 <= MIN <= MAX <= 16384"
ENTRYPOINT = (
    "the path of a script, '-m MODULE', 'module:function', a list (a command), or a mapping with script, module, function "
    "or command"
)
DURATION = "a duration such as 90s, 1h30m, 7d, 300ms, PT1M30S or a number of seconds"
NAME = "1 to 52 lower-case letters, digits and '-', with a letter or a digit at both ends"
SCALAR = "a string, a number, true or false ('' for an empty value)"


def text_of(document: Any) -> str:
    with pytest.raises(JobError) as caught:
        load_job(document)
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        pytest.param(
            {"rpc": {"pickle": "some"}},
            "rpc.pickle: 'some' is not allowed; expected true or false",
            id="pickles of calls",
        ),
        *(
            pytest.param(
                {"health": {"pre_check_ops": ops}}, f"health.pre_check_ops: {ops!r} is not allowed; expected {OPS}", id=ops
            )
            for ops in ("{{1}}", "{[1]: 1}")
        ),
        pytest.param(
            {"nodes": "3:1"},
            f"nodes: '3:1' is not allowed; expected {NODES}",
            id="nodes upside down",
        ),
        pytest.param(
            {"nodes": 0},
            f"nodes: 0 is not allowed; expected {NODES}",
            id="no nodes",
        ),
        pytest.param(
            {"nodes": "a few"},
            f"nodes: 'a few' is not allowed; expected {NODES}",
            id="nodes in words",
        ),
        pytest.param(
            {"nodes": True},
            f"nodes: true is not allowed; expected {NODES}",
            id="nodes as a boolean",
        ),
        pytest.param(
            {"nodes": None},
            f"nodes: null is not allowed; expected {NODES}",
            id="nodes left empty",
        ),
        pytest.param(
            {"nodes": "3:4", "node_unit": 2},
            "nodes: '3:4' is not allowed; expected MIN and MAX that are multiples of 2, because node_unit is 2",
            id="range off the unit",
        ),
        pytest.param(
            {"nodes": 3, "node_unit": 2},
            "nodes: 3 is not allowed; expected a multiple of 2, because node_unit is 2",
            id="number off the unit",
        ),
        pytest.param(
            {"node_unit": 0},
            "node_unit: 0 is not allowed; expected a whole number from 1 to 16384",
            id="a unit of nothing",
        ),
        pytest.param(
            {"nproc_per_node": "gpu"},
            "nproc_per_node: 'gpu' is not allowed; expected a whole number from 1 to 65535",
            id="processes in words",
        ),
        pytest.param(
            {"faulttolerance": {}}, "faulttolerance: is not a known key; did you mean 'fault_tolerance'?", id="a key misspelled"
        ),
        pytest.param({"nproc": 2}, "nproc: is not a known key; did you mean 'nproc_per_node'?", id="torchrun's word"),
        pytest.param(
            {"recovery": {"log_dir": "logs"}},
            "recovery.log_dir: is not a known key; did you mean 'logs.dir'?",
            id="DLRover's word in another block",
        ),
        pytest.param(
            {"retryLimit": 2},
            "retryLimit: is not a known key; did you mean 'fault_tolerance.retry_limit'?",
            id="AppWrapper's word",
        ),
        pytest.param(
            {"max_restart": 2},
            "max_restart: is not a known key; did you mean 'recovery.max_restarts'?",
            id="a key out of its block",
        ),
        pytest.param(
            {"health": {"zzz": 1}},
            f"health.zzz: is not a known key; expected one of {HEALTH}",
            id="a key that resembles none",
        ),
        pytest.param(
            {"health": {7: 1}},
            f"health.7: is not a known key; expected one of {HEALTH}",
            id="no text",
        ),
        pytest.param(
            {"fault_tolerance": {"retry_pause_period": "5 parsecs"}},
            f"fault_tolerance.retry_pause_period: '5 parsecs' is not allowed; expected {DURATION}, from 0s to 1d",
            id="an unknown unit of time",
        ),
        pytest.param(
            {"fault_tolerance": {"warmup_grace_period": "25h"}},
            f"fault_tolerance.warmup_grace_period: '25h' is not allowed; expected {DURATION}, from 0s to 1d",
            id="a grace beyond a day",
        ),
        pytest.param(
            {"recovery": {"replace_delay": -1}},
            f"recovery.replace_delay: -1 is not allowed; expected {DURATION}, 0s or more",
            id="a negative duration",
        ),
        pytest.param(
            {"rendezvous": {"join_timeout": "0s"}},
            f"rendezvous.join_timeout: '0s' is not allowed; expected {DURATION}, more than 0s",
            id="a timeout of nothing",
        ),
        pytest.param(
            {"fault_tolerance": {"retry_limit": 101}},
            "fault_tolerance.retry_limit: 101 is not allowed; expected a whole number from 0 to 100",
            id="too many retries",
        ),
        pytest.param(
            {"rendezvous": {"port": 65536}},
            "rendezvous.port: 65536 is not allowed; expected a whole number from 0 to 65535",
            id="no port",
        ),
        pytest.param(
            {"health": {"node_lease": "10s", "report_interval": "5s"}},
            "health.report_interval: '5s' is not allowed; expected less than half of node_lease (10s)",
            id="reports too rare for the lease",
        ),
        pytest.param(
            {"logs": {"tee": "all"}},
            "logs.tee: 'all' is not allowed; expected one of none, stdout, stderr, both",
            id="an unknown stream",
        ),
        pytest.param(
            {"logs": {"tail_lines": 0}},
            "logs.tail_lines: 0 is not allowed; expected a whole number from 1 to 200",
            id="no tail",
        ),
        pytest.param(
            {"recovery": {"exit_grace_period": "2d"}},
            "recovery.exit_grace_period: '2d' is not allowed; expected a "
            "duration such as 90s, 1h30m, 7d, 300ms, PT1M30S or a number of seconds, from 0s to 1d",
            id="a grace of days",
        ),
        pytest.param(
            {"recovery": None},
            "recovery: null is not allowed; expected a mapping with some "
            "of max_restarts, node_replacements, max_hangs, replace_delay, stop_grace_period, exit_grace_period, "
            "standby, preload, start_method, refill, save_at_breakpoint, training_elastic_mode, replica_every, "
            "replica_limit",
            id="a block left empty",
        ),
        pytest.param(
            {"env": {"A": None}},
            f"env.A: null is not allowed; expected {SCALAR}",
            id="an environment value left empty",
        ),
        pytest.param(
            {"env": {"A": [1]}},
            f"env.A: [1] is not allowed; expected {SCALAR}",
            id="a list in the environment",
        ),
        pytest.param(
            {"env": {"A": "\0"}},
            f"env.A: '\\x00' is not allowed; expected {SCALAR}",
            id="NUL in the environment",
        ),
        pytest.param(
            {"env": {"A": "\ud800"}},
            f"env.A: '\\ud800' is not allowed; expected {SCALAR}",
            id="half a character",
        ),
        pytest.param(
            {"env": {"A": float("nan")}},
            f"env.A: nan is not allowed; expected {SCALAR}",
            id="not a number",
        ),
        pytest.param(
            {"env": ["A=1"]},
            "env: ['A=1'] is not allowed; expected a mapping",
            id="the environment as a list",
        ),
        pytest.param(
            {"env": {"1A": "x"}},
            "env.1A: '1A' is not allowed; expected a variable name of "
            "letters, digits, '_', '-' and '.', not beginning with a digit",
            id="no variable name",
        ),
        pytest.param(
            {"env": {"WORLD_SIZE": 8}},
            "env.WORLD_SIZE: 'WORLD_SIZE' is not allowed; expected another name, because Rallypoint sets this variable",
            id="a variable that is ours",
        ),
        pytest.param(
            {"args": "--lr 1"},
            "args: '--lr 1' is not allowed; expected a list",
            id="arguments as text",
        ),
        pytest.param(
            {"args": ["--fast", True]},
            "args[1]: true is not allowed; expected a string or a number (quote true, false and null)",
            id="a boolean argument",
        ),
        pytest.param(
            {"entrypoint": ""},
            f"entrypoint: '' is not allowed; expected {ENTRYPOINT}",
            id="an empty entrypoint",
        ),
        pytest.param(
            {"entrypoint": []},
            f"entrypoint: [] is not allowed; expected {ENTRYPOINT}",
            id="an empty command",
        ),
        pytest.param(
            {"entrypoint": 3},
            f"entrypoint: 3 is not allowed; expected {ENTRYPOINT}",
            id="a number as entrypoint",
        ),
        pytest.param(
            {"entrypoint": {"script": "a.py", "module": "a"}},
            f"entrypoint: {{'script': 'a.py', 'module': 'a'}} is not allowed; expected {ENTRYPOINT}",
            id="two entrypoints",
        ),
        pytest.param(
            {"entrypoint": "python train.py"},
            "entrypoint: 'python train.py' is not allowed; expected one "
            "script path without white space; write a command as a list ([python, train.py]), arguments in args, "
            "and a path with white space as {script: ...}",
            id="a command as plain text",
        ),
        pytest.param(
            {"entrypoint": "-m pkg.train --fast"},
            "entrypoint: '-m pkg.train --fast' is not allowed; expected '-m' and one dotted module name; write "
            "arguments in args",
            id="arguments after the module",
        ),
        pytest.param(
            {"entrypoint": {"command": "echo 'a"}},
            "entrypoint: {'command': \"echo 'a\"} is not allowed; expected a command with balanced quotes (no "
            "closing quotation)",
            id="an open quote",
        ),
        pytest.param(
            {"resources": {"memory": "8GB"}},
            "resources.memory: '8GB' is not allowed; expected a Kubernetes quantity such as 500m, 2, 1.5 or 8Gi",
            id="no Kubernetes quantity",
        ),
        pytest.param(
            {"resources": {"cpu": -1}},
            "resources.cpu: -1 is not allowed; expected a Kubernetes quantity such as 500m, 2, 1.5 or 8Gi",
            id="a negative quantity",
        ),
        pytest.param(
            {"resources": {"extended": {"gpu": 1}}},
            "resources.extended.gpu: 'gpu' is not allowed; expected a "
            "resource name with a domain, such as rdma/hca, or hugepages-SIZE or ephemeral-storage",
            id="an extended resource without domain",
        ),
        pytest.param(
            {"tolerations": ["gpu"]},
            "tolerations[0]: 'gpu' is not allowed; expected a mapping of plain JSON values (quote numbers with a point)",
            id="no toleration",
        ),
        pytest.param(
            {"affinity": {"a": {1, 2}}},
            "affinity: {'a': {1, 2}} is not allowed; expected a mapping of plain JSON values (quote numbers with a point)",
            id="no JSON in a pod's field",
        ),
        pytest.param(
            {"affinity": {"a": 0.5}},
            "affinity: {'a': 0.5} is not allowed; expected a mapping of plain JSON values (quote numbers with a point)",
            id="a float in a pod's field",
        ),
        pytest.param(
            {"affinity": {1: "a"}},
            "affinity: {1: 'a'} is not allowed; expected a mapping of plain JSON values (quote numbers with a point)",
            id="a number as a key in a pod's field",
        ),
        pytest.param(
            {"image": "my image"},
            "image: 'my image' is not allowed; expected a string without white space",
            id="no image",
        ),
        pytest.param(
            {"workdir": 7},
            "workdir: 7 is not allowed; expected a path as a string",
            id="no path",
        ),
        pytest.param(
            {"name": "My_Job"},
            f"name: 'My_Job' is not allowed; expected {NAME}",
            id="name with capitals",
        ),
        pytest.param(
            {"name": "a" * 53},
            f"name: '{'a' * 53}' is not allowed; expected {NAME}",
            id="name too long",
        ),
        pytest.param(
            {"name": "-a"},
            f"name: '-a' is not allowed; expected {NAME}",
            id="name beginning with a dash",
        ),
        pytest.param(
            {"name": "a\n"},
            f"name: 'a\\n' is not allowed; expected {NAME}",
            id="name with a line's end",
        ),
        pytest.param(
            {"name": 7},
            f"name: 7 is not allowed; expected {NAME}",
            id="name as a number",
        ),
    ],
)
def test_a_wrong_value_is_told_with_its_path_and_what_is_allowed(change, text):
    """One mistake gives one line: path, value, what is allowed."""
    assert text_of({**GOOD, **change}) == text


@pytest.mark.parametrize(
    ("document", "text"),
    [
        pytest.param({"name": "digits"}, f"entrypoint: is missing; expected {ENTRYPOINT}", id="no entrypoint"),
        pytest.param({"entrypoint": "train.py"}, f"name: is missing; expected {NAME}", id="no name"),
        pytest.param({}, f"name: is missing; expected {NAME}\nentrypoint: is missing; expected {ENTRYPOINT}", id="nothing"),
        pytest.param(
            None, f"name: is missing; expected {NAME}\nentrypoint: is missing; expected {ENTRYPOINT}", id="no document at all"
        ),
        pytest.param(
            [1],
            "job: [1] is not allowed; expected a mapping with name and entrypoint",
            id="a list",
        ),
        pytest.param(
            {"name": "digits", "nodes": 2, "entrypoint": "a.py", "roles": [{"entrypoint": "b.py"}]},
            "roles: the document has the key roles, so these keys must be inside a role: entrypoint, nodes",
            id="both forms at once",
        ),
        pytest.param(
            {"name": "digits", "roles": [{"entrypoint": "a.py", "nodes": "x"}]},
            f"roles[0].nodes: 'x' is not allowed; expected {NODES}",
            id="in a list of roles",
        ),
        pytest.param(
            {"name": "digits", "roles": {"worker": {"nodes": "x"}}},
            f"roles.worker.entrypoint: is missing; expected {ENTRYPOINT}\n"
            f"roles.worker.nodes: 'x' is not allowed; expected {NODES}",
            id="in a mapping of roles",
        ),
        pytest.param(
            {"name": "digits", "roles": {"Worker": {"entrypoint": "a.py"}}},
            f"roles.Worker: 'Worker' is not allowed; expected {NAME}",
            id="a wrong name of a role in a mapping",
        ),
        pytest.param(
            {"name": "digits", "roles": {"worker": {"name": "ps", "entrypoint": "a.py"}}},
            "roles.worker.name: 'ps' is not allowed, because the key of this role in roles is already its name "
            "('worker'); omit name",
            id="two names for a role",
        ),
        pytest.param(
            {"name": "digits", "roles": [{"entrypoint": "a.py", "node_unit": 2}]},
            "roles[0].nodes: 1 is not allowed; expected a multiple of 2, because node_unit is 2",
            id="off the unit in a list of roles",
        ),
        pytest.param(
            {"name": "digits", "roles": [{"entrypoint": "a.py"}, {"entrypoint": "b.py"}]},
            "roles: ['trainer', 'trainer'] is not allowed; expected a list of roles with different names",
            id="two roles of one name",
        ),
        pytest.param(
            {"name": "digits", "roles": []},
            "roles: [] is not allowed; expected a list of roles or a mapping from a role's name to the role, at least one",
            id="no roles",
        ),
        pytest.param(
            {"name": "digits", "roles": "trainer"},
            "roles: 'trainer' is not allowed; expected a list of "
            "roles or a mapping from a role's name to the role, at least one",
            id="roles as text",
        ),
        pytest.param(
            {"name": "digits", "roles": [{"entrypoint": "a.py", "recovery": {}}]},
            "roles[0].recovery: is not a known key; did you mean 'recovery'?",
            id="a policy inside of a role",
        ),
    ],
)
def test_a_wrong_document_is_told_in_its_own_form(document, text):
    """Paths are those of the document as it was written: short, list or mapping."""
    assert text_of(document) == text


def test_every_problem_is_told_at_once():
    """Problems of different places come together, one a line, without a word of pydantic's."""
    text = text_of(
        {"name": "A", "entrypoint": "a.py", "nodes": 0, "env": {"X": None}, "recovery": {"max_restarts": -1}, "oops": 1}
    )

    assert [line.split(":")[0] for line in text.splitlines()] == ["name", "nodes", "env.X", "recovery.max_restarts", "oops"]
    assert "pydantic" not in text
    assert "ValidationError" not in text


def test_the_model_itself_raises_the_same_error():
    """Constructing an ElasticJob directly speaks the same language."""
    with pytest.raises(JobError) as caught:
        ElasticJob(name="Bad", roles=())

    assert isinstance(caught.value, RallypointError)
    assert [problem.path for problem in caught.value.problems] == ["name", "roles"]


def test_a_long_value_is_shown_shortened():
    """A line stays readable, whatever was given."""
    assert text_of({**GOOD, "nodes": "9" * 500}) == (f"nodes: '{'9' * 76}... is not allowed; expected {NODES}")


def test_an_alias_to_itself_is_an_error_and_not_an_endless_loop():
    """A pod field that contains itself is refused."""
    affinity: dict[str, object] = {}
    affinity["again"] = affinity

    assert text_of({**GOOD, "affinity": affinity}) == "job: the document is nested too deeply"


@pytest.mark.parametrize(
    "travel", [pytest.param(copy.copy, id="copy"), pytest.param(lambda e: pickle.loads(pickle.dumps(e)), id="pickle")]
)
def test_the_error_travels_between_processes(travel):
    """Its problems and its source survive pickling, as task runners do it."""
    error = JobError([Problem(path="nodes", text="is missing")], "job.yaml")

    assert str(travel(error)) == "job.yaml is not a valid job:\nnodes: is missing"
    assert travel(error).problems == error.problems


@pytest.mark.parametrize("text", ["1e9999999", "1e999999999", "9" * 400, 10**400], ids=["e7", "e9", "digits", "integer"])
@pytest.mark.parametrize(
    "path", ["health.hang_downtime", "fault_tolerance.pending_fail_strategy", "instance_resources.gpus", "master.cpu"]
)
def test_a_number_beyond_all_bounds_is_refused_at_once(path: str, text: str | int) -> None:
    """An exponent of nine digits took minutes and all memory; an integer beyond every float was a traceback."""
    block, field = path.split(".")
    began = time.process_time()

    told = text_of({**GOOD, block: {field: text}})

    assert time.process_time() - began < 1.0
    assert told.startswith(f"{path}: {text!r:.40}"[:60])
    assert "is not allowed; expected" in told
