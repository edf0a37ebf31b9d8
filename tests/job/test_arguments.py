"""Where the arguments of DLRover are given: job file, annotations, environment, command line; who wins, and what is refused."""

from __future__ import annotations

import pytest

from rallypoint.capabilities import modules
from rallypoint.job import JobError, load_job
from rallypoint.job.arguments import ARGUMENTS, PREFIX, field_default
from rallypoint.job.spelling import completed, overridden, said_by_annotations, variables

BARE = {"name": "digits", "entrypoint": "train.py"}

#: What is allowed for each argument, beside its default: a value, and one that is refused.
VALUES = {
    "job_name": ("letters", "No Name"),
    "namespace": ("team", "a b"),
    "platform": ("k8s", "mars"),
    "pending_timeout": ("60", "-1"),
    "pending_fail_strategy": ("-1", "3"),
    "service_type": ("http", "soap"),
    "xpu_type": ("ascend", "amd"),
    "hang_detection": ("0", "7"),
    "hang_downtime": ("5", "-1"),
    "pre_check_ops": ('[("my.checks", "Disk", True)]', '[("my.checks",)]'),
    "training_elastic_mode": ("ucp", "other"),
    "dynamic_failover_extension": ("my.module::Mine", "my.module.Mine"),
    "precheck": ("2", "3"),
    "node_unit": ("2", "0"),
    "nnodes": ("2:4", "0"),
    "rdzv_conf": ("'join_timeout=5'", "join_timeout=0"),
    "max_restarts": ("7", "0"),
    "relaunch_on_worker_failure": ("7", "0"),
    "log_dir": ("logs", 3),
    "auto_config": ("true", "perhaps"),
    "exclude_straggler": ("true", "perhaps"),
    "save_at_breakpoint": ("true", "perhaps"),
    "accelerator": ("ascend-npu", "tpu"),
    "numa_affinity": ("true", "perhaps"),
    "network_check": ("true", "perhaps"),
    "comm_perf_test": ("true", "perhaps"),
    "training_port": ("50000", "65536"),
}
# Other arguments of optional capabilities are switches; the tests of each capability cover them.
VALUES |= {
    name: ("true", "perhaps") for module in modules("spec") for name in getattr(module, "ARGUMENTS", {}) if name not in VALUES
}

NAMES = [pytest.param(name, id=name) for name in ARGUMENTS]


def bare(name) -> dict[str, object]:
    """Return a document in which the argument may be said."""
    document: dict[str, object] = {"name": "digits", "entrypoint": "train.py"}
    if name == "job_name":
        del document["name"]
    if name == "exclude_straggler":
        document["health"] = {"precheck": 1}
    if name == "node_unit":
        document["nodes"] = "2:4"
    return document


def fields(name, document):
    """Return what a job has in the fields of an argument, as its canonical document writes them."""
    job = load_job(document, based=False)
    found = {}
    for block, field in ARGUMENTS[name].read(VALUES[name][0]):
        part = job if not block else job.roles[0] if block == "roles" else getattr(job, block)
        found[block, field] = part.model_dump(mode="json")[field]
    return found


def expected(name):
    return ARGUMENTS[name].read(VALUES[name][0])


def test_every_argument_of_the_document_is_there():
    """12 of its master, 16 of training, of which optional capabilities bring some; none is left out here."""
    assert set(VALUES) == set(ARGUMENTS)
    assert len(ARGUMENTS) == 25 + sum(len(getattr(module, "ARGUMENTS", ())) for module in modules("spec"))


@pytest.mark.parametrize("spelling", [pytest.param("_", id="snake"), pytest.param("-", id="kebab")])
@pytest.mark.parametrize("name", NAMES)
def test_a_job_file_has_it_at_its_top_level(name, spelling):
    """By the name that it has in the document, with underscores or hyphens."""
    document = {**bare(name), name.replace("_", spelling): VALUES[name][0]}

    assert fields(name, document) == expected(name)


@pytest.mark.difference(6)
@pytest.mark.parametrize("prefix", [pytest.param("", id="bare"), pytest.param(PREFIX, id="with our prefix")])
@pytest.mark.parametrize("name", [pytest.param(n, id=n) for n, argument in ARGUMENTS.items() if argument.annotation])
def test_an_annotation_has_it(name, prefix):
    """All but the name and the namespace, which DLRover excludes, too."""
    document = {**bare(name), "annotations": {f"{prefix}{name}": str(VALUES[name][0])}}

    assert fields(name, document) == expected(name)


@pytest.mark.parametrize("name", NAMES)
def test_the_environment_has_it(name):
    """RALLYPOINT_ and the name; torchrun's 1 is true."""
    text = {"true": "1"}.get(VALUES[name][0], VALUES[name][0])

    assert fields(name, variables({ARGUMENTS[name].variable: text})(bare(name))) == expected(name)


@pytest.mark.parametrize("name", NAMES)
def test_the_command_line_has_it(name):
    """In the place of whatever the document says."""
    assert fields(name, overridden(bare(name), {name: VALUES[name][0]})) == expected(name)


@pytest.mark.parametrize("name", NAMES)
def test_anything_else_is_an_error_that_names_it_and_what_is_allowed(name):
    """At each place, by the words that were written there."""
    argument, wrong = ARGUMENTS[name], VALUES[name][1]
    places = [
        (lambda: load_job({**bare(name), name: wrong}), name),
        (lambda: overridden(bare(name), {name: wrong}), argument.flag),
        (lambda: completed(bare(name), {name: wrong}, at=lambda a: f"arguments.{a.name}"), f"arguments.{name}"),
    ]
    if argument.annotation:
        places.append((lambda: load_job({**bare(name), "annotations": {name: wrong}}), f"annotations.{name}"))
    for place, path in places:
        with pytest.raises(JobError) as caught:
            place()
        (problem,) = caught.value.problems
        assert (problem.path, "is not allowed; expected " in problem.text) == (path, True)
        assert len(problem.text.split("; ", 1)[1]) > 10


def test_the_job_file_wins_over_its_annotation_and_that_over_the_environment_and_that_over_a_connection():
    """Each of the four says another number of restarts; what is not said falls to the next."""
    environment = variables({"RALLYPOINT_MAX_RESTARTS": "6"})

    def restarts(document):
        whole = completed(environment(document), {"max_restarts": 9}, at=lambda argument: argument.name)
        return load_job(whole, based=False).recovery.max_restarts

    annotated = {**BARE, "annotations": {"max_restarts": "5"}}
    assert restarts({**annotated, "max_restarts": 4}) == 4
    assert restarts({**annotated, "recovery": {"max_restarts": 4}}) == 4
    assert restarts(annotated) == 5
    assert restarts(BARE) == 6
    assert load_job(completed(BARE, {"max_restarts": 9}, at=str), based=False).recovery.max_restarts == 9


@pytest.mark.parametrize(
    ("document", "path", "said"),
    [
        pytest.param(
            {"max_restarts": 4, "max-restarts": 5}, "max-restarts", "expected 4, the value of max_restarts,", id="two keys"
        ),
        pytest.param(
            {"max_restarts": 4, "recovery": {"max_restarts": 5}},
            "max_restarts",
            "conflicts with recovery.max_restarts",
            id="its field",
        ),
        pytest.param({"nnodes": 4, "nodes": 2}, "nnodes", "conflicts with nodes", id="the field of a role"),
        pytest.param(
            {"relaunch_on_worker_failure": 4, "recovery": {"relaunch_on_worker_failure": 5}},
            "relaunch_on_worker_failure",
            "conflicts with recovery.node_replacements",
            id="another name of its field",
        ),
        pytest.param(
            {"rdzv_conf": "join_timeout=9", "rendezvous": {"join_timeout": 5}}, "rdzv_conf", "it conflicts with", id="a key"
        ),
        pytest.param(
            {"annotations": {"max_restarts": "4", "rallypoint.dev/max_restarts": "5"}},
            "annotations.rallypoint.dev/max_restarts",
            "expected '4', the value of annotations.max_restarts,",
            id="two annotations",
        ),
    ],
)
def test_two_spellings_that_disagree_are_an_error(document, path, said):
    """It names both."""
    with pytest.raises(JobError) as caught:
        load_job({**BARE, **document}, based=False)

    (problem,) = caught.value.problems
    assert problem.path == path
    assert said in problem.text


@pytest.mark.parametrize(
    "document",
    [
        pytest.param({"max_restarts": 4, "max-restarts": "4", "recovery": {"max_restarts": 4}}, id="a number"),
        pytest.param({"nnodes": "2:2", "nodes": 2}, id="a range"),
        pytest.param({"hang_downtime": 5, "health": {"hang_downtime": "5m"}}, id="a duration"),
        pytest.param({"network-check": True, "network_check": "true"}, id="a switch"),
    ],
)
def test_two_spellings_of_one_value_are_one(document):
    """They are compared as they are read, and not as they are written."""
    assert load_job({**BARE, **document}, based=False).name == "digits"


@pytest.mark.parametrize(
    ("document", "text"),
    [
        pytest.param(
            {"annotations": {"rallypoint.dev/max_restart": "4"}},
            "annotations.rallypoint.dev/max_restart: is not a known argument; did you mean 'max_restarts'?",
            id="an unknown annotation of ours",
        ),
        pytest.param(
            {"annotations": {"rallypoint.dev/namespace": "team"}},
            "annotations.rallypoint.dev/namespace: cannot be an annotation; move it to the job file",
            id="one that can be no annotation",
        ),
        pytest.param(
            {"labels": {"rallypoint.dev/precheck": "1"}},
            "labels.rallypoint.dev/precheck: has no effect in labels; move this key to annotations",
            id="a label",
        ),
    ],
)
def test_what_would_have_no_effect_is_an_error(document, text):
    """Nobody looks for it in vain."""
    with pytest.raises(JobError) as caught:
        load_job({**BARE, **document}, based=False)

    assert str(caught.value) == text


@pytest.mark.argument("auto_config")
def test_auto_config_takes_the_number_of_nodes_from_the_environment():
    """NODE_NUM, where nobody says how many; without auto_config it means nothing."""
    environment = variables({"NODE_NUM": "3"})

    def nodes(**said):
        return load_job(environment({**BARE, **said}), based=False).roles[0].nodes.max

    assert (nodes(auto_config=True), nodes(), nodes(auto_config=True, nnodes=2)) == (3, 1, 2)
    assert nodes(annotations={"auto_config": "true"}) == 3
    with pytest.raises(JobError, match="environment variable NODE_NUM: 'many' is not allowed"):
        variables({"NODE_NUM": "many"})({**BARE, "auto-config": True})


def test_an_argument_of_a_role_needs_one_role():
    """With several nobody knows which is meant; with one its form does not matter."""
    role = {"entrypoint": "train.py"}
    one = load_job({"name": "digits", "nnodes": 3, "roles": {"trainer": role}}, based=False)
    with pytest.raises(JobError, match="nnodes: 3 is not allowed for a job with several roles; set nodes in each role"):
        load_job({"name": "digits", "nnodes": 3, "roles": {"trainer": role, "critic": role}}, based=False)

    assert one.roles[0].nodes.max == 3


def test_an_error_that_follows_from_an_argument_names_what_was_written():
    """And not the field that it stands for."""
    with pytest.raises(JobError) as caught:
        load_job({**BARE, "exclude-straggler": True, "nnodes": 3, "node_unit": 2}, based=False)

    assert {problem.path for problem in caught.value.problems} == {"exclude-straggler", "nnodes"}


def test_a_job_with_arguments_reads_back_equal():
    """Its canonical document has its own words alone, and the annotations as they were."""
    job = load_job({**BARE, "nnodes": "1:2", "annotations": {"precheck": "1"}, "rdzv_conf": {"join_timeout": 9}}, based=False)
    document = job.to_document()

    assert load_job(document, based=False) == job
    assert not {"nnodes", "rdzv_conf", "precheck"} & document.keys()
    assert said_by_annotations(document) == {("health", "precheck")}


def test_pre_check_ops_are_a_literal_and_never_run():
    """Whatever is not one is refused, and so is what would be evaluated."""
    with pytest.raises(JobError, match="is not allowed"):
        load_job({**BARE, "pre_check_ops": '__import__("os").abort()'}, based=False)


#: Our defaults, as the document writes them.
SEED = {"30m": "30", "15m": "900", "": "None"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, id=n) for n, argument in ARGUMENTS.items() if not argument.note and n != "service_type"]
)
def test_the_defaults_are_those_of_the_document(name):
    """Those of arguments with a note are told there; without a service_type it is grpc where that can be."""
    argument = ARGUMENTS[name]
    default = field_default(argument.field)
    text = str([tuple(op) for op in default]).replace("'", '"') if isinstance(default, list) else str(default)
    switched = argument.switch and text == ""

    assert argument.seed in {SEED.get(text, text), "False" if switched else "", "n/a" if text == "" else "", "n/a (required)"}
