"""`JobBuilder`: what each method means, in any order, and what it refuses."""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.job import JobError, load_job
from rallypoint.job.builder import Job, JobBuilder, RLJobBuilder
from rallypoint.job.document import read_yaml
from rallypoint.job.errors import Problem


def problems(build) -> dict[str, str]:
    with pytest.raises(JobError) as caught:
        build()
    return {problem.path: problem.text for problem in caught.value.problems}


CALLS = (
    ("total", 4),
    ("nnodes", 2),
    ("nproc_per_node", 2),
    ("per_group", 2),
    ("env", {"A": 1}),
    ("resource", {"cpu": 1}),
)


@pytest.mark.parametrize("count", range(1, len(CALLS) + 1))
def test_order_never_matters(count):
    """Every permutation of the calls of a role gives the same job, with and without end() after each."""
    found = set()
    for calls in itertools.permutations(CALLS[:count]):
        role = JobBuilder().train("pkg.train.run")
        for name, value in calls:
            role = getattr(role, name)(value)
        found |= {role.build().text, role.end().build().text}

    assert len(found) == 1


@given(st.permutations(["node_num", "device_per_node", "role", "config", "with_collocation", "global_env"]))
def test_the_methods_of_the_job_may_come_anywhere(order):
    """A collocation may name roles that are defined later."""
    builder = JobBuilder()
    for name in order:
        if name == "role":
            builder = builder.role("Actor").train("m.a").total(2).role("rollout").run("m.r").total(2).end()
        elif name == "with_collocation":
            builder.with_collocation("actor", "ROLLOUT")
        else:
            value = {"config": {"a": 1}, "global_env": {"E": 1}}.get(name, 2)
            getattr(builder, name)(value)

    document = builder.build().to_document()

    assert document["groups"] == [{"name": "actor-rollout", "roles": ["actor", "rollout"]}]
    assert document["cluster"] == {"nodes": 2, "devices_per_node": 2, "device_type": "gpu"}


def test_all_problems_are_in_one_error():
    """Each with its path; later calls do not hide earlier ones."""
    found = problems(
        lambda: (
            JobBuilder()
            .node_num(0)
            .device_per_node(True)
            .device_type("mem")
            .train("main")
            .total(6)
            .nnodes(2)
            .nproc_per_node(2)
            .workload("R", "m.f")
            .resource(gpus=2, cpu=-1)
            .env({"RANK": 1})
            .workload("r", "m.f")
            .with_collocation("r", "zz")
            .build()
        )
    )

    assert list(found) == [
        "roles.elastic.entrypoint",
        "roles.elastic.total",
        "roles.r.resource.gpus",
        "roles.r",
        "node_num",
        "device_per_node",
        "device_type",
        "roles.r.env.RANK",
        "roles.r.instance_resources.cpu",
        "groups[0].roles",
    ]
    assert found["roles.elastic.total"] == (
        "total 6, nnodes 2, nproc_per_node 2 are not allowed together; expected total = nnodes x 2"
    )
    assert found["roles.r.resource.gpus"] == "is not a known resource; did you mean 'gpu'?"


@pytest.mark.parametrize(
    ("entry", "document"),
    [
        pytest.param("pkg.mod.func", {"entrypoint": "pkg.mod:func"}, id="dotted"),
        pytest.param("pkg.mod:func", {"entrypoint": "pkg.mod:func"}, id="colon"),
        pytest.param("pkg.mod::func", {"entrypoint": "pkg.mod:func"}, id="two colons"),
        pytest.param("pkg.mod:Class", {"entrypoint": "pkg.mod:Class"}, id="class"),
        pytest.param("a.py --x 'b c' d::e", {"entrypoint": "a.py", "args": ["--x", "b c", "d::e"]}, id="script"),
        pytest.param("'my dir/a.py'", {"entrypoint": {"script": "my dir/a.py"}}, id="script in a folder with a space"),
        pytest.param("-m pkg.mod --x", {"entrypoint": "-m pkg.mod", "args": ["--x"]}, id="module"),
    ],
)
def test_entrypoints(entry, document):
    """Each form; arguments are split like a shell does, and two colons are replaced in the name only."""
    found = JobBuilder().train(entry).build().to_document()

    assert {key: found[key] for key in ("entrypoint", "args") if key in found} == document


@pytest.mark.parametrize(
    "entry", ["main", "", "python train.py", "bash x/y.sh", "/usr/bin/python3.11 x.py", "pkg.mod.func x", "a.py 'b", None, 7]
)
def test_entrypoints_that_would_fail_later_are_refused(entry):
    """At build, with what is allowed."""
    assert "expected" in problems(lambda: JobBuilder().train(entry).build())["entrypoint"]


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        pytest.param([{"gpu": 2}], {"gpus": 2}, id="gpu"),
        pytest.param([{"cpu": 4, "gpu": 2}], {"cpu": 4, "gpus": 2}, id="gpu beside cpu"),
        pytest.param([{"mem": 8192}], {"memory": "8192Mi"}, id="memory alone takes no device"),
        pytest.param([{"acc": 0.5}], {"gpus": "0.5"}, id="fraction"),
        pytest.param([{"cpu": 1}, {"cpu": 2, "disk": 10}], {"cpu": 2, "disk": "10Mi"}, id="the last call counts"),
        pytest.param([{"ud_resource": {"rdma": 1}}], {"user_defined": {"rdma": 1}}, id="user-defined"),
        pytest.param([], {"gpus": 1}, id="nothing named is one device"),
    ],
)
def test_resources(resources, expected):
    """What is named is what an instance has, under all names of DLRover."""
    role = JobBuilder().workload("a", "m.f")
    for given_ in resources:
        role.resource(**given_)

    assert role.build().to_document()["roles"]["a"]["instance_resources"] == expected
    as_dict = JobBuilder().workload("a", "m.f")
    for given_ in resources:
        as_dict.resource(given_)
    assert as_dict.build() == role.build()


def test_two_names_of_a_resource_must_agree():
    """`gpu` and `accelerator` are one."""
    JobBuilder().workload("a", "m.f").resource(gpu=1, accelerator=1).build()
    found = problems(lambda: JobBuilder().workload("a", "m.f").resource(gpu=1, accelerator=2).build())
    assert list(found) == ["roles.a.resource.gpu"]


def test_a_built_job_does_not_change():
    """Later calls of the builder, and changes of a document, leave it alone; building twice gives equal jobs."""
    builder = JobBuilder()
    role = builder.train("m.f")
    job = builder.build()
    document = job.to_document()
    document["nodes"] = 7
    assert builder.build() == job
    role.nnodes(2)

    assert (job.to_document()["nodes"], builder.build().to_document()["nodes"]) == (1, 2)
    with pytest.raises(AttributeError):
        job.text = ""  # type: ignore[misc]


def test_environment_and_config_merge():
    """The role's variables win, None removes one; numbers are taken as text; configurations merge."""
    job = (
        JobBuilder()
        .global_env({"A": 1, "B": "x", "C": True})
        .config({"a": 1})
        .config(argparse.Namespace(b=2))
        .config(None)
        .train("m.f")
        .envs({"A": 2, "B": None})
        .build()
    )

    read = load_job(job.to_document())
    assert read.roles[0].env == {"A": "2", "C": "true"}
    assert read.config == {"a": 1, "b": 2}


def test_a_config_that_is_no_mapping_is_refused():
    """Also one that JSON cannot hold."""
    assert "DictConfig" in problems(lambda: JobBuilder().config([1]).train("m.f").build())["config"]
    assert "JSON" in problems(lambda: JobBuilder().config({"a": object()}).train("m.f").build())["config"]
    assert "JSON" in problems(lambda: JobBuilder().config({"a": float("nan")}).train("m.f").build())["config"]


def test_run_needs_a_role():
    """An error of the call itself; a name serves one role."""
    assert list(problems(lambda: JobBuilder().run("m.f"))) == ["role"]
    assert list(problems(lambda: JobBuilder().role("a").run("m.f").end().run("m.g"))) == ["role"]


def test_the_roles_of_reinforcement_learning():
    """Actor and critic are elastic, the trainer is the driver, and only these names are allowed."""
    builder = RLJobBuilder().trainer("m.t").actor("m.a").rollout("m.r").critic("m.c").with_collocation_all()
    document = builder.build().to_document()

    assert document["groups"][0]["roles"] == ["actor", "rollout", "critic"]
    assert {name: (role.get("launch", "elastic"), role.get("driver", True)) for name, role in document["roles"].items()} == {
        "trainer": ("simple", True),
        "actor": ("elastic", False),
        "rollout": ("simple", False),
        "critic": ("elastic", False),
    }
    assert document["roles"]["trainer"]["instance_resources"] == {"cpu": 4, "memory": "8192Mi"}
    assert list(problems(lambda: RLJobBuilder().trainer("m.t").build())) == ["roles.actor"]
    assert "roles.judge" in problems(lambda: RLJobBuilder().actor("m.a").workload("judge", "m.j").build())


def test_building_imports_nothing_of_others():
    """Neither ray, torch, omegaconf nor the module of the entrypoint."""
    script = (
        "import sys\nfrom rallypoint.job.builder import JobBuilder\n"
        "JobBuilder().train('antigravity.fly').build()\n"
        "print([name for name in ('ray', 'torch', 'omegaconf', 'antigravity') if name in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_a_hundred_roles_are_built_at_once():
    """In at most 0.2 s of CPU time, and they read back from YAML."""

    def build():
        builder = JobBuilder().node_num(100).device_per_node(8)
        for number in range(100):
            builder.workload(f"r{number}", "m.f").total(8).per_group(2).resource(cpu=1, gpu=1).env({"N": number})
        return builder.build()

    build()
    began = time.thread_time()
    job = build()
    took = time.thread_time() - began

    assert took <= 0.2
    assert len(load_job(read_yaml(job.to_yaml())).roles) == 100


COUNTS = st.integers(1, 4)
BUILT_ROLES = st.lists(
    st.tuples(st.sampled_from(["run", "train"]), COUNTS, COUNTS, st.booleans(), st.sampled_from([None, 1, 0.5, 3])),
    min_size=1,
    max_size=4,
)


@given(
    BUILT_ROLES,
    st.booleans(),
    st.dictionaries(st.text(min_size=1, max_size=3), st.floats(allow_nan=False, allow_infinity=False)),
)
def test_a_built_job_reads_back(roles, collocated, config):
    """Its YAML is the job that it was built as; what cannot be built names a path for each problem."""
    builder = JobBuilder().node_num(64).device_per_node(64).config(config)
    for index, (kind, groups, per_group, driver, gpu) in enumerate(roles):
        role = getattr(builder.role(f"r{index}"), kind)("m.f").total(groups * per_group).per_group(per_group)
        role.resource(gpu=gpu)
        if not driver:
            role.not_driver()
    if collocated:
        builder.with_collocation_all()
    job, found = built(builder)
    assert all(problem.path and problem.text for problem in found)
    if job is None:
        return

    read = load_job(read_yaml(job.to_yaml("x")), based=False)

    assert read == load_job(job.to_document("x"), based=False)
    assert load_job(read.to_document(), based=False) == read


def built(builder: JobBuilder) -> tuple[Job | None, tuple[Problem, ...]]:
    try:
        return builder.build(), ()
    except JobError as error:
        return None, error.problems


@pytest.mark.parametrize(
    ("calls", "path", "text"),
    [
        pytest.param(lambda b: b.global_env(["A=1"]), "global_env", "['A=1'] is not allowed; expected a dict", id="a list"),
        pytest.param(lambda b: b.global_env({1: 2}), "global_env", "{1: 2} is not allowed; expected a dict", id="a number"),
        pytest.param(
            lambda b: b.workload("b", "m.b").env("A"), "roles.b.env", "'A' is not allowed; expected a dict", id="text"
        ),
        pytest.param(lambda b: b.node_num("2"), "node_num", "'2' is not allowed; expected a whole number", id="count as text"),
        pytest.param(lambda b: b.role(3).run("m.b"), "roles.3.name", "3 is not allowed; expected 1 to 52", id="name"),
        pytest.param(lambda b: b.role("b"), "role", "'b' was named and not defined; call run() or train()", id="undefined"),
        pytest.param(lambda b: b.role("b").workload("c", "m.c"), "role", "'b' was named and not defined", id="overtaken"),
        pytest.param(lambda b: b.with_collocation_all("z"), "with_collocation_all", "role 'z' is not defined", id="excluded"),
    ],
)
def test_a_call_that_says_nothing_is_a_problem(calls, path, text):
    """Nothing that was called is dropped, and no other error than `JobError` comes of a value."""
    builder = JobBuilder().workload("a", "m.a").workload("d", "m.d").end()
    found = problems(calls(builder).build)

    assert found[path].startswith(text), found


def test_no_variables_are_no_problem():
    """As with `env`, None is nothing."""
    document = JobBuilder().global_env(None).train("m.a").env(None).build().to_document("x")

    assert "env" not in document
