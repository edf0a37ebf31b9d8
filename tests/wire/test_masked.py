"""Which parts of a job's environment and arguments are hidden, and where."""

from __future__ import annotations

import json

import pytest

from rallypoint.wire.env import MASKED
from rallypoint.wire.masked import mask_of, mask_spec


def redact(_: str, value: str) -> str:
    return value.replace("hunter2-secret", "***")


def test_the_place_of_a_secret_is_noted_and_not_the_secret():
    """A part of a value, or the whole of it."""
    env = {"URL": "postgres://me:hunter2-secret@host/db", "PLAIN": "x", "WAREHOUSE": "hunter2-secret"}
    args = ("--password", "hunter2-secret", "--twice=hunter2-secrethunter2-secret")

    spec = mask_spec(env, args, redact)

    assert "hunter2" not in spec
    assert json.loads(spec) == [["URL", 14, 28], ["WAREHOUSE", 0, 14], [1, 0, 14], [2, 0, 36]]
    mask = mask_of({**env, MASKED: spec}, args)
    assert mask("cannot connect with hunter2-secret as me") == "cannot connect with *** as me"
    assert mask_spec({"PLAIN": "x"}, (), redact) == ""
    assert mask_spec({**env, MASKED: spec}, args, redact) == spec


@pytest.mark.parametrize("spec", ["", "x", "{}", "[1]", '[["GONE", 0, 9]]', "[[9, 0, 9]]", '[["A", "x", 9]]', '[["A", 0, 3]]'])
def test_a_note_that_names_no_secret_masks_nothing(spec):
    """A script can write its own plan; texts of less than five characters would mask too much, as in Airflow."""
    assert mask_of({"A": "abcdefgh", MASKED: spec}, ())("abcdefgh abc") == "abcdefgh abc"
