"""Which parts of a job's environment and arguments are hidden, and where."""

from __future__ import annotations

import dataclasses
import json
import time

import pytest

from rallypoint.wire.env import MASKED
from rallypoint.wire.masked import mask_of, mask_of_plan, mask_spec, secrets_of
from tests.cli.samples import PLAN


def redact(_: str, value: str) -> str:
    return value.replace("hunter2-secret", "***")


def test_the_place_of_a_secret_is_noted_and_not_the_secret():
    """A part of a value, or the whole of it."""
    env = {"URL": "postgres://me:hunter2-secret@host/db", "PLAIN": "x", "WAREHOUSE": "hunter2-secret"}
    args = ("--password", "hunter2-secret", "--twice=hunter2-secrethunter2-secret")

    spec = mask_spec(env, args, redact)

    assert "hunter2" not in spec
    assert json.loads(spec) == [["URL", 14, 28], ["WAREHOUSE", 0, 14], [-2, 0, 14], [-1, 8, 22], [-1, 22, 36]]
    mask = mask_of({**env, MASKED: spec}, ("-m", "words.before.them", *args))
    assert mask("cannot connect with hunter2-secret as me") == "cannot connect with *** as me"
    assert mask_spec({"PLAIN": "x"}, (), redact) == ""
    assert mask_spec({**env, MASKED: spec}, args, redact) == spec


@pytest.mark.parametrize("value", ["false", "False", "true"])
def test_a_switch_is_no_secret(value):
    """Airflow masks by the name of a variable, here for its `TOKEN`; a log without the word `false` cannot be read."""
    assert mask_spec({"TOKENIZERS_PARALLELISM": value}, (), lambda name, text: "***" if "TOKEN" in name else text) == ""


@pytest.mark.parametrize("spec", ["", "x", "{}", "[1]", '[["GONE", 0, 9]]', "[[9, 0, 9]]", '[["A", "x", 9]]', '[["A", 0, 3]]'])
def test_a_note_that_names_no_secret_masks_nothing(spec):
    """A script can write its own plan; texts of less than five characters would mask too much, as in Airflow."""
    assert mask_of({"A": "abcdefgh", MASKED: spec}, ())("abcdefgh abc") == "abcdefgh abc"


SECRETS = ("hunter2-secret", "lake,password")


@pytest.mark.parametrize(
    ("value", "places"),
    [
        ("hunter2-secret,lake,password", [[0, 14], [15, 28]]),
        ("lake,password,hunter2-secret", [[0, 13], [14, 28]]),
        ("a***b,hunter2-secret;", [[6, 20]]),
        ("hunter2-secretlake,password", [[0, 14], [14, 27]]),
        ("x" * 20_000 + "hunter2-secret,hunter2-secret", [[0, 20_029]]),
    ],
    ids=["two", "the text between them is in one", "a literal ***", "nothing between them", "too long to be searched"],
)
def test_each_secret_of_a_value_has_its_place(value, places):
    """A script prints one of them, not the value."""

    def shown(_: str, text: str) -> str:
        for secret in SECRETS:
            text = text.replace(secret, "***")
        return text

    spec = mask_spec({"A": value}, (), shown)

    assert json.loads(spec) == [["A", *place] for place in places]
    for begin, end in places:
        assert mask_of({"A": value, MASKED: spec}, ())(f"got {value[begin:end]}") in ("got ***", "***")


def test_a_value_whose_secrets_cannot_be_told_apart_is_masked_as_a_whole():
    """The shown value does not have the form that the value has."""
    env = {"A": "first-secret,other-secret"}

    assert mask_spec(env, (), lambda _, value: "***,***" if "," in value else value) == '[["A", 0, 25]]'
    assert mask_spec(env, (), lambda _, __: "redacted") == '[["A", 0, 25]]'


@pytest.mark.parametrize(
    ("size", "places"),
    [
        (5_000_000, [["A", begin, 5_000_000] for begin in range(2000)]),
        (20_000, [["A", 0, 17_000]]),
        (20_000, [["A", begin, begin + 6] for begin in range(1025)]),
        (20_000, [["A", 0, 6]] * 5000),
    ],
    ids=["quadratic", "long", "many", "a long note"],
)
def test_a_note_of_too_many_secrets_masks_whole_texts(size, places):
    """A script can write its own plan: what it notes costs no memory and no time, and nothing is shown."""
    value = "".join(chr(97 + place * 7919 % 26) for place in range(20_000)) * (size // 20_000)
    mask = mask_of({"A": value, MASKED: json.dumps(places)}, ())

    assert (mask("a text"), mask("")) == ("***", "")


def test_as_many_secrets_as_are_allowed_are_masked_one_by_one():
    """The same one in many variables counts once in characters."""
    env = {f"A{place}": "x" * 10_000 for place in range(200)} | {"B": "hunter2-secret"}
    spec = json.dumps([[name, 0, len(value)] for name, value in env.items()])

    assert mask_of({**env, MASKED: spec}, ())("got hunter2-secret") == "got ***"


@pytest.mark.parametrize("spec", ["[" * 50_000, '["A", 0, ' + "9" * 5000 + "]"], ids=["deep", "a long number"])
def test_a_note_that_cannot_be_read_masks_nothing(spec):
    """And raises nothing."""
    assert mask_of({"A": "abcdefgh", MASKED: spec}, ())("abcdefgh") == "abcdefgh"


def test_the_secrets_of_all_roles_are_those_of_the_job():
    """The plan of a job with roles has no environment of its own; what is no plan of a role is passed over."""
    env = {"PW": "hunter2-secret", MASKED: '[["PW", 0, 14]]'}
    roles: tuple[dict, ...] = ({}, {"plan": []}, {"plan": {"env": 5}}, {"plan": {"env": {MASKED: '[["PW", 0, 9]]', "PW": 7}}})
    plan = dataclasses.replace(PLAN, env={}, roles=(*roles, {"plan": {"env": env, "args": ()}}))

    assert mask_of_plan(plan)("got hunter2-secret") == "got ***"
    assert mask_of_plan(dataclasses.replace(PLAN, env=env))("got hunter2-secret") == "got ***"


def test_a_plan_hides_secrets_of_earlier_attempts():
    """Their output stays in the logs; the secrets of all attempts together have the limits of one job."""
    env = {"PW": "hunter2-secret", MASKED: '[["PW", 0, 14]]'}
    plan = dataclasses.replace(PLAN, env=env, hidden=("earlier-secret",))
    many = dataclasses.replace(PLAN, hidden=tuple(f"secret-{number}" for number in range(300)))

    assert mask_of_plan(plan)("earlier-secret, hunter2-secret, public") == "***, ***, public"
    assert set(secrets_of(plan)) == {"earlier-secret", "hunter2-secret"}
    assert mask_of_plan(many)("public") == "***"
    assert mask_of_plan(dataclasses.replace(PLAN, hidden=secrets_of(many)))("public") == "***"


KEY = "-----BEGIN KEY-----\nMIIEpAIBAAKCAQEA7\n  Q2hhbmdlTWU=\n{\n-----END KEY-----\n"


def test_each_line_of_a_secret_is_masked():
    """Logs and errors are shown line by line, with other text before and after; short lines are kept."""
    mask = mask_of({"KEY": KEY, MASKED: json.dumps([["KEY", 0, len(KEY)]])}, ())

    assert mask(f"401: {KEY}") == "401: ***"
    assert [mask(f"    {line.strip()} at host") for line in KEY.splitlines()] == [
        "    *** at host",
        "    *** at host",
        "    *** at host",
        "    { at host",
        "    *** at host",
    ]
    assert mask(repr(KEY).replace("  ", "")) == "'***\\n***\\n***\\n{\\n***\\n'"


@pytest.mark.parametrize("kept", range(5, 14))
def test_the_beginning_of_a_secret_at_the_end_of_a_cut_text_is_masked(kept):
    """A text of hundreds of characters may have been cut before it was masked."""
    secret = "hunter2-secret"
    mask = mask_of({"A": secret, MASKED: json.dumps([["A", 0, len(secret)]])}, ())

    assert mask("x" * 2000 + secret[:kept]) == "x" * 2000 + "***"
    assert mask("says " + secret[:kept]) == "says " + secret[:kept]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("DB down: hunter2-sec ... (8 bytes more)", "DB down: *** ... (8 bytes more)"),
        ("exit code 3: hunter2-sec ... (8 bytes more); retrying", "exit code 3: *** ... (8 bytes more); retrying"),
        ("... ter2-secret at db", "... *** at db"),
        ("exit code 3: ... ter2-secret at db", "exit code 3: ... *** at db"),
        ("... ter2-secret then hunter2-s ... (5 bytes more)", "... *** then *** ... (5 bytes more)"),
        ("waits ... hunt", "waits ... hunt"),
        ("a ... (1 bytes more)" * 20 + "hunter2 ... (7 bytes more)", "a ... (1 bytes more)" * 8 + "***"),
    ],
)
def test_parts_of_a_secret_beside_the_mark_of_a_cut_line_are_masked(text, shown):
    """Lines are cut before they are masked; see `tail.TailLine`."""
    mask = mask_of({"A": "hunter2-secret", MASKED: json.dumps([["A", 0, 14]])}, ())

    assert mask(text) == shown


@pytest.mark.parametrize(
    ("secrets", "line"),
    [
        pytest.param([f"{'a' * 57}{number:03}" for number in range(60)], "a" * 14_999 + "c", id="many that begin alike"),
        pytest.param([f"{number:03}{'a' * 57}" for number in range(250)], "a" * 4_995 + "001aa", id="those of many attempts"),
        pytest.param(["a" * 16_000], "a" * 14_998 + "ca", id="one that ends nowhere"),
        pytest.param([f"{'ab' * 5}{number:03}" for number in range(60)], "ab" * 7_500, id="two letters"),
        pytest.param(["\n".join(f"{'a' * 20}{number:03}" for number in range(250))], "a" * 14_999 + "c", id="many lines"),
    ],
)
def test_a_line_that_looks_like_the_beginnings_of_secrets_takes_little_time(secrets, line):
    """A script writes both; a viewer's click masks 2,000 lines. What is too long to find is hidden with its surroundings."""
    value = "|".join(secrets)
    ends = [len("|".join(secrets[: number + 1])) for number in range(len(secrets))]
    spec = json.dumps([["A", end - len(secret), end] for secret, end in zip(secrets, ends, strict=True)])
    mask = mask_of({"A": value, MASKED: spec}, ())
    assert secrets[-1][-4:] not in mask(f"password {secrets[-1]}")
    began = time.thread_time()
    shown = [mask(line) for _ in range(20)]
    assert (time.thread_time() - began) / 20 < 0.002
    assert shown[0].endswith("***")


def test_too_many_lines_mask_all():
    """A text that cannot be searched for them is not shown."""
    secret = "\n".join(f"line {number}" for number in range(1100))

    assert mask_of({"A": secret, MASKED: json.dumps([["A", 0, len(secret)]])}, ())("hello") == "***"
