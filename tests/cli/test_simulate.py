from __future__ import annotations

import json

import pytest

#: Vector 5 of AppWrapper's section on budgets, with our pause that begins when everything is gone.
BUDGET = """\
- {at: 10, pods: F, note: it fails}
- {at: 12, gone: true}
- {at: 20, pods: F}
- {at: 26, gone: true}
- {at: 31, pods: F}
- {at: 40, gone: true}
"""

ANNOTATIONS = """\
nodes: 2
retryLimit: "2"
failureGracePeriodDuration: 0s
retryPausePeriodDuration: 5s
"""


@pytest.fixture
def simulate(run, tmp_path, capsys):
    """Run a policy's and a trace's text; returns the exit code, the output and the errors."""

    def simulated(policy, trace, *options):
        (tmp_path / "policy.yaml").write_text(policy)
        (tmp_path / "trace.yaml").write_text(trace)
        code = run("simulate", tmp_path / "policy.yaml", tmp_path / "trace.yaml", *options)
        return code, *capsys.readouterr()

    return simulated


def _frames(out):
    return json.loads(out)["frames"]


def test_a_trace_is_told(simulate):
    """People see the policy, then each time with its phases, retries, conditions, actions and the next clock."""
    code, out, _ = simulate(ANNOTATIONS, BUDGET)

    assert code == 0
    assert "profile appwrapper, 2 nodes created by the wrapped components, 2 retries" in out
    assert "       10 s  Resetting   attempt 1, 1 of 2 retries   # it fails".strip() in out
    assert "next  at 17 s (retry-pause): attempt 2 is deployed" in out
    assert "do    create the components of attempt 3" in out
    assert out.rstrip().endswith("end   supervision has ended")


def test_a_trace_is_told_to_programs(simulate):
    """With `--json`: the resolved policy and every frame, all times in the trace's seconds."""
    code, out, _ = simulate(ANNOTATIONS, BUDGET, "--json")

    assert code == 0
    assert json.loads(out)["policy"]["retry_pause"] == 5.0
    story = [(frame["at"], phase) for frame in _frames(out) for phase in frame["phases"]]
    assert story == [
        (0, "Resuming"),
        (0, "Running"),
        (10, "Resetting"),
        (17, "Resuming"),
        (17, "Running"),
        (20, "Resetting"),
        (31, "Resuming"),
        (31, "Running"),
        (31, "Failed"),
    ]
    last = _frames(out)[-1]
    assert (last["retries"], last["conditions"]["QuotaReserved"]["value"], last["done"]) == (2, False, True)
    assert not any(frame["violations"] for frame in _frames(out))


def test_verbose_tells_everything(simulate):
    """Every condition, every clock and every line of history."""
    _, short, _ = simulate(ANNOTATIONS, BUDGET)
    _, long, _ = simulate(ANNOTATIONS, BUDGET, "--verbose")

    assert "event running: components created: 1 of 1" in long
    assert len(long) > len(short)


def test_settings_change_the_policy(simulate):
    """`--set` tries another grace without another file."""
    _, out, _ = simulate(ANNOTATIONS, BUDGET, "--json", "--set", "failureGracePeriodDuration=5m", "--set", "retryLimit=0")

    assert json.loads(out)["policy"]["failure_grace"] == 300.0
    assert json.loads(out)["policy"]["retry_limit"] == 0


def test_a_job_file_is_a_policy(simulate):
    """Its fault tolerance is tried, its nodes are the world."""
    job = "name: digits\nentrypoint: train.py\nnodes: 1:3\nfault_tolerance: {failure_grace_period: 7s}\n"
    _, out, _ = simulate(job, "[{at: 1}]", "--json")

    policy = json.loads(out)["policy"]
    assert (policy["min_nodes"], policy["max_nodes"], policy["failure_grace"], policy["profile"]) == (1, 3, 7.0, "ladder")


def test_a_policy_has_the_defaults_of_its_profile(simulate):
    """What is not given is what a job file of that profile would have."""
    _, out, _ = simulate("{profile: appwrapper, min_nodes: 2, max_nodes: 2}", "[{at: 1}]", "--json")

    policy = json.loads(out)["policy"]
    assert (policy["node_replacements"], policy["pending_fail_strategy"], policy["wrapped"]) == (0, -1, True)


def test_labels_of_mindcluster_are_a_policy(simulate):
    """Its labels choose its profile and its rules, as in a job file."""
    labels = '{nodes: 8, labels: {fault-scheduling: grace, pod-rescheduling: "on", fault-retry-times: "3"}}'
    _, out, _ = simulate(labels, "[{at: 1}]", "--json")

    policy = json.loads(out)["policy"]
    assert (policy["profile"], policy["scheduling"]["fault_scheduling"], policy["scheduling"]["fault_retry_times"]) == (
        "mindcluster",
        "grace",
        3,
    )


def test_times_and_policies_may_be_written_as_durations(simulate):
    """In a trace `at` may be `2m40s`, and an edit `5m` or an annotation."""
    trace = """\
makers: supervisor
until: 5m
steps:
- {at: 10, pods: RR}
- {at: 1m40s, pods: "RF(1)", policy: {failure_grace: 2m, retryLimit: "7", terminal_exit_codes: "3, 10"}}
"""
    _, out, _ = simulate("{profile: appwrapper, nodes: 2}", trace, "--json")

    (resetting,) = [frame for frame in _frames(out) if "Resetting" in frame["phases"]]
    assert resetting["at"] == 220


def test_what_is_out_of_range_is_clamped_with_a_warning(simulate):
    """Annotations are read as AppWrapper's controller reads them, and what was changed is said."""
    code, out, _ = simulate("{nodes: 2, failureGracePeriodDuration: 48h}", "[{at: 1}]")

    assert code == 0
    assert "warning: workload.codeflare.dev.appwrapper/failureGracePeriodDuration: '48h' is out of range" in out


@pytest.mark.parametrize(
    ("policy", "trace", "message"),
    [
        pytest.param(
            "{retryLimit: '1'}",
            "[]",
            "nodes: None is not allowed; expected a number of nodes",
            id="no nodes",
        ),
        pytest.param("{nodes: 2, grace: 3}", "[]", "policy.yaml.grace: 3 is not allowed", id="a field"),
        pytest.param("{nodes: 2, failure_grace: 3x}", "[]", "failure_grace: '3x' is not allowed", id="a duration"),
        pytest.param("{nodes: 2, retry_limit: -1}", "[]", "retry_limit: -1 is not allowed", id="a limit"),
        pytest.param("{nodes: 2, terminal_exit_codes: '3,x'}", "[]", "terminal_exit_codes: '3,x'", id="a code"),
        pytest.param("{nodes: 2, failureGracePeriodDuration: 222badTime}", "[]", "222badTime", id="an annotation"),
        pytest.param(
            "{nodes: 2, retryLimit: [1]}",
            "[]",
            "retryLimit: [1] is not allowed; expected a string",
            id="a list",
        ),
        pytest.param(
            "{nodes: 2, min_nodes: 1}",
            "[]",
            "nodes: 2 is not allowed; expected no value, because min_nodes or max_nodes is set",
            id="twice",
        ),
        pytest.param("{profile: appwrapper, nodes: '1:2'}", "[]", "nodes", id="an elastic AppWrapper"),
        pytest.param(
            "{nodes: 2, failure_grace: 5m, failureGracePeriodDuration: 1m}",
            "[]",
            "failure_grace: '5m' is not allowed",
            id="two words",
        ),
        pytest.param("{profile: best, nodes: 2}", "[]", "ladder", id="a profile"),
        pytest.param("[1]", "[]", "expected a job file, or a mapping of policy fields", id="no object"),
        pytest.param("{nodes: 2}", "[{at: soon}]", "steps[0].at: 'soon' is not allowed", id="a time"),
        pytest.param("{nodes: 2}", "[{at: 1, podz: RR}]", "steps[0].podz: 'RR'", id="a step's field"),
        pytest.param("{nodes: 2}", "[{at: 1, policy: {grace: 1}}]", "steps[0].policy.grace: 1", id="an edit"),
        pytest.param("{nodes: 2}", "7", "trace.yaml: document: 7 is not allowed", id="no trace"),
    ],
)
def test_a_wrong_word_is_an_error_that_names_its_place(simulate, policy, trace, message):
    """The error names the field, the value and what is allowed; nothing is simulated."""
    code, out, err = simulate(policy, trace)

    assert (code, out) == (1, "")
    assert message in err
