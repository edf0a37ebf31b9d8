"""Values of calls: what arrives is what was sent, and no bytes of another process are executed."""

from __future__ import annotations

import collections
import contextlib
import json
import math
import random
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rallypoint.training.roles.errors import ProtocolError, ValueTypeError
from rallypoint.training.roles.values import DEPTH, decode, dump_json, encode, load_json

_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
_KEYS = st.text() | st.integers() | st.booleans() | st.none() | st.tuples(st.text(), st.integers())
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner) | st.dictionaries(_KEYS, inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
_TYPES = (
    hnp.boolean_dtypes()
    | hnp.integer_dtypes(endianness="?")
    | hnp.floating_dtypes(endianness="?")
    | hnp.complex_number_dtypes(endianness="?")
    | hnp.datetime64_dtypes()
    | hnp.unicode_string_dtypes()
    | hnp.byte_string_dtypes()
)
_ARRAYS = _TYPES.flatmap(lambda kind: hnp.arrays(kind, hnp.array_shapes(min_dims=0, min_side=0, max_side=4)))


class Point(NamedTuple):
    """A tuple with names."""

    x: int
    y: int


def sent(value, *, pickles=False):
    """Return a value as another process receives it."""
    buffers: list = []
    text = dump_json(encode(value, buffers, pickles=pickles))
    return decode(load_json(text), [bytearray(part) for part in buffers], pickles=pickles)


def same(left, right):
    """Return whether two values have the same types and contents; NaN is equal to NaN."""
    return repr(left) == repr(right)


@given(_VALUES)
def test_plain_values_arrive_with_their_types(value):
    """Nested containers, NaN, infinities, lone surrogates, keys of any type and keys that begin with '$'."""
    assert same(sent(value), value)


@given(st.dictionaries(st.sampled_from(["$array", "$pickle", "$", "$tuple", "a"]), _SCALARS))
def test_keys_that_look_like_ours_stay_keys(value):
    """A user's dict cannot be taken for one of our objects."""
    assert same(sent(value), value)


@given(_ARRAYS)
def test_arrays_arrive_with_type_shape_and_bytes(array):
    """All types without objects, in both byte orders, with no dimension, empty, and with NaN."""
    found = sent([array])[0]

    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tobytes() == array.tobytes()
    assert not found.size or found.flags.writeable


@pytest.mark.parametrize(
    "array",
    [np.arange(12).reshape(3, 4).T, np.arange(10)[::-2], np.broadcast_to(np.float32(1), (4, 3)), np.array(5)],
    ids=["transposed", "backwards", "broadcast", "no dimension"],
)
def test_arrays_in_any_layout_arrive(array):
    """The sender makes a contiguous copy if the memory is not contiguous."""
    assert np.array_equal(sent(array), array)


@pytest.mark.parametrize("value", [np.float64(math.nan), np.int8(-3), np.bool_(1), np.str_("ü"), np.datetime64("2026-01-01")])
def test_numpy_scalars_keep_their_type(value):
    """They are neither plain numbers nor arrays afterwards."""
    found = sent(value)

    assert type(found) is type(value)
    assert same(found, value)


_TENSORS = [
    torch.randn(3, 4),
    torch.tensor([math.nan, math.inf]),
    torch.randn(3).to(torch.bfloat16),
    torch.tensor(7),
    torch.empty(0, 5),
    torch.randn(4, 3).T,
    torch.randn(2, dtype=torch.complex64).conj(),
    torch.tensor([True, False]),
    torch.nn.Parameter(torch.ones(2)),
    torch.randn(2).to(torch.float8_e4m3fn),
]


@pytest.mark.parametrize("tensor", _TENSORS, ids=[f"{t.dtype}-{tuple(t.shape)}" for t in _TENSORS])
def test_tensors_arrive_with_type_shape_and_bytes(tensor):
    """Also bfloat16, which numpy does not have, views, and parameters (without gradient)."""
    found = sent({"w": tensor})["w"]

    assert (type(found), found.dtype, found.shape, found.requires_grad) == (torch.Tensor, tensor.dtype, tensor.shape, False)
    assert torch.equal(
        found.reshape(-1).view(torch.uint8), tensor.detach().clone().resolve_conj().contiguous().reshape(-1).view(torch.uint8)
    )


def test_a_state_dict_arrives():
    """Weights of a module are the most usual value."""
    module = torch.nn.Linear(3, 2)

    other = torch.nn.Linear(3, 2)

    other.load_state_dict(sent(module.state_dict()))

    assert all(torch.equal(value, module.state_dict()[name]) for name, value in other.state_dict().items())


def test_subclasses_arrive_as_plain_types():
    """As the document says."""
    assert same(sent([Point(1, 2), collections.OrderedDict(a=1), bytearray(b"x")]), [(1, 2), {"a": 1}, b"x"])


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {1, 2},
        print,
        np.array([object()]),
        np.ma.masked_array([1, 2], [False, True]),
        torch.eye(2).to_sparse(),
        10**5000,
    ],
    ids=["object", "set", "function", "object array", "masked", "sparse", "huge"],
)
def test_other_types_are_refused(value):
    """The error names the type; nothing is silently changed or lost."""
    with pytest.raises(ValueTypeError, match=r"not allowed|cannot be converted"):
        sent(value)


def test_deep_nesting_is_refused_on_both_sides():
    """Neither side overflows its stack."""
    value: list = []
    for _ in range(DEPTH + 1):
        value = [value]

    with pytest.raises(ValueTypeError, match="nested deeper"):
        sent(value)
    with pytest.raises(ProtocolError, match="nested deeper"):
        decode(value, [])
    with pytest.raises(ProtocolError, match="invalid JSON"):
        load_json(b"[" * 200_000)


def test_pickles_need_the_permission_of_both_sides():
    """Without `rpc: {pickle: true}` neither side makes nor reads one."""
    buffers: list = []
    tree = encode({1, 2}, buffers, pickles=True)

    assert sent({1, 2}, pickles=True) == {1, 2}
    with pytest.raises(ProtocolError, match="pickles are not allowed"):
        decode(tree, buffers)


def test_a_changed_pickle_is_not_read():
    """Its digest is in the signed part of the message."""
    buffers: list = []
    tree = encode({1, 2}, buffers, pickles=True)
    changed = bytearray(buffers[0])
    changed[-2] ^= 1

    with pytest.raises(ProtocolError, match="digest"):
        decode(tree, [changed], pickles=True)


_HOSTILE = [
    {"$array": ["O", [1], 0]},
    {"$array": ["<f4", [3], 0]},
    {"$array": ["<f4", [-1], 0]},
    {"$array": ["<f4", [1 << 61, 1 << 61], 0]},
    {"$array": ["V8", [1], 0]},
    {"$array": ["<f4,<f4", [1], 0]},
    {"$array": ["<f8", [1], 2]},
    {"$array": ["<f8", [1], -1]},
    {"$array": ["<f8", [1], True]},
    {"$array": ["<f8", [True], 0]},
    {"$array": ["<f8", [1.0], 0]},
    {"$array": ["<f8", [1] * 40, 0]},
    {"$array": ["S0", [1 << 61, 1 << 61], 1]},
    {"$array": None},
    {"$scalar": ["O", 0]},
    {"$tensor": ["save", [1], 0]},
    {"$tensor": ["float32", [1], 0]},
    {"$bytes": 3},
    {"$bytes": [0]},
    {"$dict": [[[1], 2]]},
    {"$dict": [[1]]},
    {"$dict": 5},
    {"$tuple": 5},
    {"$unknown": 5},
    {"$tuple": [], "b": 1},
    {"$pickle": [0, "00"]},
    {"$pickle": 0},
]


@pytest.mark.parametrize("tree", _HOSTILE, ids=[json.dumps(tree)[:60] for tree in _HOSTILE])
def test_invalid_values_are_refused(tree):
    """Whatever another process sends, the error is ours."""
    with pytest.raises(ProtocolError):
        decode(tree, [bytearray(8), bytearray()], pickles=True)


_NODES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["<f4", "float32", "O", "S4", "x"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["$array", "$tensor", "$scalar", "$bytes", "$dict", "$tuple", "a"]), inner, max_size=2
        )
    ),
    max_leaves=12,
)


@given(_NODES, st.lists(st.binary(max_size=16), max_size=3))
def test_random_trees_give_a_value_or_our_error(tree, buffers):
    """No other exception leaves the decoder."""
    with contextlib.suppress(ProtocolError):
        assert repr(decode(tree, [bytearray(part) for part in buffers]))


def test_large_arrays_are_not_copied_by_the_sender():
    """The buffer is the memory of the array."""
    array = np.zeros(1 << 16)
    buffers: list = []
    encode(array, buffers)
    array[0] = random.random()

    assert np.frombuffer(buffers[0])[0] == array[0]


def test_a_buffer_is_the_value_of_one_place():
    """A message of 330 KB that named one buffer 20,000 times took 1.2 GB."""
    buffers: list[Any] = []
    told = encode([b"x" * 100, b"y"], buffers)
    assert decode(told, buffers) == [b"x" * 100, b"y"]

    with pytest.raises(ProtocolError, match="two values use data buffer 0"):
        decode([{"$bytes": 0}, {"$bytes": 0}], buffers)
