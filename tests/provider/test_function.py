"""From a Python function to what is sent."""

from __future__ import annotations

import sys
import threading
import types

import pytest

from rallypoint.job import JobError, load_job
from rallypoint.provider.function import FunctionJob, pack
from rallypoint.training.function import call
from rallypoint.wire.function import FUNCTION_LIMIT

pytest.importorskip("cloudpickle", reason="sending functions needs cloudpickle")


def count(words, *, times=1):
    return len(words) * times


def test_a_function_is_the_same_for_every_try_and_another_with_other_arguments():
    """Its digest is part of the job's spec, by which a retry finds its job again."""
    first, again, other = pack(count, [["a"]], {}), pack(count, [("a",)], {}), pack(count, [["b"]], {})

    assert first.digest == again.digest != other.digest
    assert first.args == (["a"],)
    assert call(pack(count, [["a", "b"]], {"times": 2})) == 4


def test_a_module_that_can_be_imported_nowhere_else_goes_along():
    """A DAG file, that is: its functions and constants, and what it imports stays an import."""
    module = types.ModuleType("only_in_the_dag_folder")
    exec(
        "import math\nOFFSET = 4\ndef helper(x): return math.floor(x) + OFFSET\ndef train(x): return helper(x)", module.__dict__
    )
    sys.modules[module.__name__] = module
    try:
        sent = pack(module.train, [1.5], {})
    finally:
        del sys.modules[module.__name__]

    assert call(sent) == 5


@pytest.mark.parametrize(
    ("args", "says"),
    [
        pytest.param(
            [object()],
            "op_args: arguments of the function: 'dict' is not allowed; expected a JSON",
            id="type",
        ),
        pytest.param(["x" * 50_000], "at most 49152 bytes", id="size"),
    ],
)
def test_arguments_that_cannot_travel_are_refused(args, says):
    """As JSON, within 48 KiB."""
    with pytest.raises(JobError, match=says):
        pack(count, args, {})


def test_a_function_that_cannot_be_pickled_or_is_too_large_is_refused():
    """Before anything is submitted."""
    handle, large = threading.Lock(), bytes(range(256)) * (FUNCTION_LIMIT // 256)

    with pytest.raises(JobError, match="cannot be pickled: cannot pickle"):
        pack(lambda: handle, [], {})
    with pytest.raises(JobError, match=f"at most {FUNCTION_LIMIT} bytes"):
        _ = FunctionJob(job=load_job(name="a", entrypoint="t.py"), function=pack(lambda: large, [], {})).text
