"""A job is saved as a document that a person can read and that reads back as the same job."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rallypoint.job import ElasticJob, load_job
from rallypoint.job.document import read_json
from rallypoint.wire.incident import Answer
from tests.scale import sized

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
NAMES = st.from_regex(r"\A[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?\Z")
WORDS = st.from_regex(r"\A[a-z]{1,8}\Z")
SCALARS = TEXT | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.booleans()
SECONDS = st.floats(min_value=0.001, max_value=86400)
STREAMS = st.sampled_from(["none", "stdout", "stderr", "both"])

LABELS = st.dictionaries(WORDS, SCALARS, max_size=2)
ANSWERS = st.sampled_from([answer.value for answer in Answer])
RULES = st.lists(
    st.fixed_dictionaries(
        {"answer": ANSWERS, "exit_codes": st.lists(st.integers(0, 255), min_size=1)},
        optional={"signals": st.lists(st.integers(1, 64)), "log_pattern": st.sampled_from(["a|b", "Xid \\d+"])},
    ),
    max_size=2,
)


def _without_conflict(role: dict[str, Any]) -> dict[str, Any]:
    """Return the role without the cores of its nodes where its workers ask for devices: on a CPU these are cores, too."""
    if "gpus" not in role.get("instance_resources", {}) or "cpu" not in role.get("resources", {}):
        return role
    return {**role, "resources": {key: value for key, value in role["resources"].items() if key != "cpu"}}


ROLES = st.fixed_dictionaries(
    {
        "entrypoint": st.sampled_from(["train.py", "-m pkg.train", {"script": "a b.py"}])
        | st.lists(TEXT.filter(bool), min_size=1),
        "nodes": st.sampled_from([1, "4", "2:4", "1:62"]),
    },
    optional={
        "args": st.lists(TEXT | st.integers(), max_size=3),
        "env": st.dictionaries(WORDS, SCALARS, max_size=3),
        "workdir": TEXT,
        "resources": st.fixed_dictionaries({}, optional={"cpu": st.sampled_from([2, "500m"]), "gpus": st.integers(0, 8)}),
        "volumes": st.lists(st.fixed_dictionaries({"name": WORDS, "emptyDir": st.just({})}), max_size=2),
        "on_failure": st.sampled_from(["instance", "role", "job", "none"]),
        "node_group_failover": st.fixed_dictionaries({"label": WORDS}, optional={"timeout": st.integers(30, 3600)}),
        "instance_resources": st.fixed_dictionaries(
            {},
            optional={
                "disk": st.sampled_from(["1Gi", 1024]),
                "gpus": st.sampled_from(["1/3", 0.25, "0.5"]),
                "user_defined": st.dictionaries(WORDS, st.integers(0, 9) | st.sampled_from([0.5, "1.5"]), max_size=2),
            },
        ),
        "affinity": st.dictionaries(TEXT, st.lists(st.none() | st.integers() | TEXT, max_size=2), max_size=2),
    },
).map(_without_conflict)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
POLICIES = {
    "config": st.dictionaries(TEXT, JSON, max_size=3),
    "cluster": st.fixed_dictionaries(
        {},
        optional={
            "nodes": st.just(999_999),
            "devices_per_node": st.just(999_999),
            "device_type": st.sampled_from(["gpu", "cpu"]),
        },
    ),
    "master": st.fixed_dictionaries(
        {},
        optional={
            "cpu": st.sampled_from([2, "500m"]),
            "memory": st.just("4096Mi"),
            "create_timeout": SECONDS,
            "max_restarts": st.integers(0, 9),
            "isolation": WORDS,
        },
    ),
    "worker_isolation": WORDS,
    "rpc": st.fixed_dictionaries({}, optional={"pickle": st.booleans()}),
    "profile": st.sampled_from(["ladder", "mindcluster"]),
    "labels": LABELS,
    "annotations": LABELS,
    "fault_tolerance": st.fixed_dictionaries(
        {"retry_limit": st.integers(0, 100), "retry_pause_period": SECONDS}, optional={"rules": RULES}
    ),
    "recovery": st.fixed_dictionaries({"max_restarts": st.integers(0, 9), "stop_grace_period": SECONDS}),
    "logs": st.fixed_dictionaries({"dir": TEXT, "tee": STREAMS, "redirects": STREAMS}),
}
SHORT = st.builds(
    lambda name, role, rest: {"name": name, **role, **rest}, NAMES, ROLES, st.fixed_dictionaries({}, optional=POLICIES)
)
OWN = st.builds(lambda role, own: {**role, **own}, ROLES, st.fixed_dictionaries({}, optional={"labels": LABELS}))
SEVERAL = st.fixed_dictionaries(
    {"name": NAMES, "roles": st.dictionaries(NAMES, OWN, min_size=1, max_size=3)}, optional=POLICIES
)
GROUPED = st.builds(
    lambda counts, driver, share: {
        "name": "rl",
        "groups": [{"name": "pair", "roles": ["actor", "rollout"]}],
        "roles": {
            "actor": {"entrypoint": "pkg.actor:run", "total": counts[0] * counts[1], "per_group": counts[1]},
            "rollout": {
                "entrypoint": {"function": "pkg.rollout::serve"},
                "launch": "simple",
                "total": counts[0],
                "driver": driver,
                "instance_resources": {"gpus": share, "cpu": 2},
            },
        },
    },
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.booleans(),
    st.sampled_from([0, "1/3", 0.5]),
)


@settings(max_examples=sized(100, 25))
@given(SHORT | SEVERAL | GROUPED)
def test_a_saved_job_reads_back_equal(document):
    """YAML and JSON of a job are that job, and saving it again writes the same text."""
    job = ElasticJob.model_validate(document)
    from_yaml, from_json = ElasticJob.from_yaml(job.to_yaml()), ElasticJob.model_validate(read_json(job.to_json()))

    assert from_yaml == from_json == job
    assert from_yaml.to_yaml() == job.to_yaml()


@pytest.mark.extended
def test_a_job_with_as_many_values_as_allowed_reads_back_equal():
    """Its keys count as values of a job file, and not as values of a mapping."""
    job = load_job(name="large", entrypoint="train.py", env={f"A{n}": "" for n in range(19_000)}, based=False)

    assert ElasticJob.from_yaml(job.to_yaml()) == job


@pytest.mark.parametrize("suffix", [pytest.param("yaml", id="YAML"), pytest.param("json", id="JSON")])
def test_a_job_saved_elsewhere_keeps_its_paths(tmp_path, suffix):
    """Paths are absolute before they are saved, so the folder of the saved file means nothing."""
    job = load_job(name="digits", entrypoint="train.py", base=tmp_path / "jobs", checkpoint_dir="ckpt", logs={"dir": "logs"})
    saved = tmp_path / "elsewhere" / f"job.{suffix}"
    saved.parent.mkdir()
    saved.write_text(job.to_yaml() if suffix == "yaml" else job.to_json())

    assert ElasticJob.from_file(saved) == job


CANONICAL = """\
name: digits
entrypoint: train.py
nodes: '1:2'
node_unit: 1
nproc_per_node: 1
env:
  A: '1'
resources:
  gpus: 0
profile: ladder
fault_tolerance:
  retry_limit: 3
  admission_grace_period: 1m
  warmup_grace_period: 5m
  failure_grace_period: 1m
  retry_pause_period: 1h30m
  forceful_deletion_grace_period: 10m
  deletion_on_failure_grace_period: 0s
  success_ttl: 7d
  no_progress_limit: 3
  pending_timeout: 15m
  pending_fail_strategy: 1
  lease: 1h
recovery:
  max_restarts: 3
  node_replacements: 3
  max_hangs: 3
  replace_delay: 0s
  stop_grace_period: 10s
  exit_grace_period: 10s
  refill:
    process:
      window: 0s
      healthy_for: 0s
      on_checkpoint: false
    node:
      window: 0s
      healthy_for: 0s
      on_checkpoint: false
    hang:
      window: 0s
      healthy_for: 0s
      on_checkpoint: false
    reset:
      window: 0s
      healthy_for: 0s
      on_checkpoint: false
  save_at_breakpoint: false
  training_elastic_mode: base
rendezvous:
  join_timeout: 10m
  last_call_timeout: 30s
  fence_timeout: 10m
  port: 0
  training_port: 60000
health:
  node_lease: 3s
  report_interval: 1s
  node_unreachable: 30s
  hang_downtime: 30m
  hang_detection: 1
  hang_learning: true
  precheck: 0
  network_check: false
  comm_perf_test: false
  exclude_straggler: false
  precheck_timeout: 5m
  precheck_all_pairs: false
  precheck_only: false
  pre_check_ops:
  - - dlrover.python.master.diagnosis.precheck_operator
    - NoPreCheckOperator
    - true
  xpu_type: nvidia
insecure_token: false
tls: 'off'
network_policy: 'off'
logs:
  redirects: both
  tee: none
  tail_lines: 20
"""


def test_the_canonical_document_is_short_and_complete():
    """One role is written short; policies are written in full; what is not given is left out."""
    job = ElasticJob.model_validate(
        {
            "name": "digits",
            "entrypoint": "train.py",
            "nodes": "1:2",
            "env": {"A": 1},
            "fault_tolerance": {"retry_pause_period": 5400},
        }
    )

    assert job.to_yaml() == CANONICAL


def test_several_roles_are_written_as_a_list():
    """Their order is kept, and each says its name."""
    job = ElasticJob.model_validate(
        {"name": "rl", "roles": {"learner": {"entrypoint": "l.py"}, "actor": {"entrypoint": "a.py"}}}
    )

    assert [role["name"] for role in json.loads(job.to_json())["roles"]] == ["learner", "actor"]
