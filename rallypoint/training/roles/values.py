"""Values of calls as JSON and raw buffers, and back. Pure: does no I/O, and imports numpy and torch only for values of theirs.

None, booleans, numbers, texts, lists and dicts with text keys are JSON. All other values are JSON objects with a single key
that begins with `$`; arrays, tensors and bytes lie in buffers beside the JSON text, without a copy:

    {"$tuple": [...]}                          {"$dict": [[key, value], ...]}     other keys, or keys that begin with `$`
    {"$bytes": buffer}                         {"$array": [dtype, shape, buffer]}      {"$scalar": [dtype, buffer]}
    {"$tensor": [dtype, shape, buffer]}        {"$pickle": [buffer, sha256]}      only if the job allows pickles

A value of a subclass arrives as the plain type. A tensor arrives on the CPU, without its gradient.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import math
import mmap
import pickle
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rallypoint.training.roles.errors import ProtocolError, ValueTypeError

__all__ = ["DEPTH", "Buffer", "decode", "dump_json", "encode", "load_json"]

Buffer = bytes | bytearray | memoryview | mmap.mmap

#: Maximum nesting of a value.
DEPTH = 64

#: Dimensions of an array, and of a tensor.
_DIMENSIONS = 32

_DTYPE = re.compile(r"[<>|=]?(?:b1|[iu][1248]|f(?:2|4|8|12|16)|c(?:8|16|32)|[SU][0-9]{1,9}|[mM]8(?:\[[0-9a-zA-Zμ]{1,12}\])?)")
_TORCH = frozenset(
    {
        *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128", "bool"),
        *("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64"),
    }
)
#: Kinds of numpy types that have no reference to a Python object.
_KINDS = frozenset("biufcSUmM")

_ALLOWED = "None, bool, int, float, str, bytes, list, tuple, dict, numpy arrays, numpy scalars and torch tensors"


def dump_json(tree: Any) -> bytes:
    """Return JSON text; a number that JSON does not have is written as `NaN` or `Infinity`."""
    try:
        return json.dumps(tree, separators=(",", ":")).encode("ascii")
    except (ValueError, RecursionError) as error:  # an integer of more than 4,300 digits
        raise ValueTypeError(f"value of a call between roles: cannot be converted to JSON: {error}") from error


def load_json(text: Buffer) -> Any:
    """Read JSON text of another process; raises `ProtocolError`."""
    try:
        return json.loads(bytes(text))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"received invalid JSON in a call between roles: {type(error).__name__}") from error


def encode(value: Any, buffers: list[Buffer], *, pickles: bool = False) -> Any:
    """Return a JSON tree, and append the raw parts of the value to `buffers`; raises `ValueTypeError`."""
    return _Encoder(buffers, pickles=pickles).tree(value, DEPTH)


def decode(tree: Any, buffers: Sequence[Buffer], *, pickles: bool = False) -> Any:
    """Return the value of a JSON tree from another process; raises `ProtocolError`. Arrays share memory with the buffers."""
    return _Decoder(buffers, pickles=pickles).value(tree, DEPTH)


class _Encoder:
    def __init__(self, buffers: list[Buffer], *, pickles: bool) -> None:
        self._buffers, self._pickles = buffers, pickles

    def tree(self, value: Any, depth: int) -> Any:
        if value is None or value is True or value is False or type(value) in (int, float, str):
            return value
        if depth == 0:
            raise ValueTypeError(f"value of a call between roles: is nested deeper than {DEPTH} levels")
        found = self._library(value)
        if found is not None:
            return found
        if isinstance(value, (int, float, str)):
            return _plain_scalar(value)
        if isinstance(value, (list, tuple)):
            items = [self.tree(item, depth - 1) for item in value]
            return items if isinstance(value, list) else {"$tuple": items}
        if isinstance(value, dict):
            return self._dict(value, depth - 1)
        if isinstance(value, (bytes, bytearray, memoryview)):
            return {"$bytes": self._buffer(memoryview(value).cast("B") if len(value) else b"")}
        return self._pickle(value)

    def _dict(self, value: Mapping[Any, Any], depth: int) -> Any:
        if all(type(key) is str and not key.startswith("$") for key in value):
            return {key: self.tree(item, depth) for key, item in value.items()}
        return {"$dict": [[self.tree(key, depth), self.tree(item, depth)] for key, item in value.items()]}

    def _library(self, value: Any) -> Any:
        """Return the tree of a value of torch or numpy, None for any other value."""
        torch: Any = sys.modules.get("torch")
        numpy: Any = sys.modules.get("numpy")
        if torch is not None and isinstance(value, _class(torch, "Tensor")):
            return self._tensor(torch, value)
        if numpy is not None and isinstance(value, _class(numpy, "ndarray")):
            # A masked array would arrive without its mask.
            if value.dtype.kind not in _KINDS or type(value) not in (numpy.ndarray, numpy.memmap):
                return self._pickle(value)
            flat = value if value.flags.c_contiguous else value.copy(order="C")
            return {"$array": [_dtype_name(value.dtype), list(value.shape), self._buffer(_bytes_of(numpy, flat))]}
        if numpy is not None and isinstance(value, _class(numpy, "generic")):
            if value.dtype.kind not in _KINDS:
                return self._pickle(value)
            return {"$scalar": [_dtype_name(value.dtype), self._buffer(numpy.asarray(value).tobytes())]}
        return None

    def _tensor(self, torch: Any, value: Any) -> Any:
        name = str(value.dtype).removeprefix("torch.")
        plain = type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided
        if name not in _TORCH or not plain or value.is_quantized or value.device.type == "meta":
            return self._pickle(value)
        flat = value.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
        return {"$tensor": [name, list(value.shape), self._buffer(memoryview(flat.numpy()))]}

    def _pickle(self, value: Any) -> Any:
        if not self._pickles:
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            raise ValueTypeError(
                f"value of a call between roles: type {kind} is not allowed; expected {_ALLOWED}. "
                "To send any object, set `rpc: {pickle: true}` in the job file"
            )
        try:
            text = pickle.dumps(value, protocol=5)
        except Exception as error:  # any class may define how it is pickled
            raise ValueTypeError(
                f"value of a call between roles: {type(value).__qualname__} cannot be pickled: {error}"
            ) from error
        return {"$pickle": [self._buffer(text), hashlib.sha256(text).hexdigest()]}

    def _buffer(self, data: Buffer) -> int:
        self._buffers.append(data)
        return len(self._buffers) - 1


class _Decoder:
    def __init__(self, buffers: Sequence[Buffer], *, pickles: bool) -> None:
        self._buffers, self._pickles = buffers, pickles
        self._read: set[int] = set()
        self._readers: dict[str, Callable[[Any, int], Any]] = {
            "$array": self._array,
            "$bytes": lambda told, _: bytes(self._buffer(told)),
            "$dict": self._dict,
            "$pickle": self._unpickle,
            "$scalar": self._scalar,
            "$tensor": self._tensor,
            "$tuple": lambda told, depth: tuple(self._items(told, depth)),
        }

    def value(self, tree: Any, depth: int) -> Any:
        if not isinstance(tree, (list, dict)):
            return tree
        if depth == 0:
            raise ProtocolError(f"invalid value in a call between roles: it is nested deeper than {DEPTH} levels")
        if isinstance(tree, list):
            return self._items(tree, depth - 1)
        key = next(iter(tree), "")
        if not key.startswith("$"):
            return {name: self.value(item, depth - 1) for name, item in tree.items()}
        reader = self._readers.get(key)
        if reader is None or len(tree) != 1:
            raise ProtocolError(f"invalid value in a call between roles: its type {key[:40]!r} is unknown")
        return reader(tree[key], depth - 1)

    def _items(self, told: Any, depth: int) -> list[Any]:
        if not isinstance(told, list):
            raise ProtocolError("invalid value in a call between roles: the items of a tuple or dict are not a list")
        return [self.value(item, depth) for item in told]

    def _dict(self, told: Any, depth: int) -> dict[Any, Any]:
        pairs = self._items(told, depth)
        try:
            return {key: value for key, value in pairs}  # noqa: C416  the pairs are checked by unpacking them
        except (TypeError, ValueError) as error:
            raise ProtocolError(
                "invalid value in a call between roles: malformed dict; expected a list of [key, value] pairs"
            ) from error

    def _buffer(self, index: Any) -> Buffer:
        if type(index) is not int or not 0 <= index < len(self._buffers):
            raise ProtocolError(
                f"invalid value in a call between roles: it refers to data buffer {str(index)[:40]}, but the message "
                f"has {len(self._buffers)} data buffers"
            )
        # A copy for each mention of one buffer would make gigabytes of a small message.
        if index in self._read:
            raise ProtocolError(
                f"invalid value in a call between roles: two values use data buffer {index}; expected one value for each buffer"
            )
        self._read.add(index)
        return self._buffers[index]

    def _shaped(self, told: Any, size: int) -> tuple[Any, ...]:
        if not isinstance(told, list) or len(told) != size or not isinstance(told[0], str):
            raise ProtocolError(
                f"invalid value in a call between roles: for an array, scalar or tensor, expected a list of {size} "
                "items that begins with the name of a type"
            )
        return tuple(told)

    def _array(self, told: Any, _: int) -> Any:
        dtype, shape, index = self._shaped(told, 3)
        numpy, kind = _numpy_type(dtype)
        buffer = self._buffer(index)
        _require_size(buffer, kind.itemsize, _dimensions(shape))
        with _refused(shape):
            return (numpy.frombuffer(buffer, dtype=kind) if len(buffer) else numpy.empty(0, dtype=kind)).reshape(shape)

    def _scalar(self, told: Any, _: int) -> Any:
        dtype, index = self._shaped(told, 2)
        numpy, kind = _numpy_type(dtype)
        buffer = self._buffer(index)
        _require_size(buffer, kind.itemsize, ())
        return numpy.frombuffer(buffer, dtype=kind)[0] if len(buffer) else kind.type()

    def _tensor(self, told: Any, _: int) -> Any:
        name, shape, index = self._shaped(told, 3)
        torch = _import("torch", "torch tensor")
        kind = getattr(torch, name, None) if name in _TORCH else None
        if kind is None:
            raise ProtocolError(
                f"invalid value in a call between roles: torch type {name[:40]!r} is not allowed; expected a type "
                "such as float32"
            )
        buffer = self._buffer(index)
        _require_size(buffer, kind.itemsize, _dimensions(shape))
        writable = buffer if isinstance(buffer, (bytearray, mmap.mmap)) else bytearray(buffer)
        with _refused(shape):
            return (torch.frombuffer(writable, dtype=kind) if len(writable) else torch.empty(0, dtype=kind)).reshape(shape)

    def _unpickle(self, told: Any, _: int) -> Any:
        if not isinstance(told, list) or len(told) != 2 or not isinstance(told[1], str):
            raise ProtocolError(
                "invalid value in a call between roles: malformed pickle; expected the number of a data "
                "buffer and the SHA-256 digest of this buffer"
            )
        if not self._pickles:
            raise ProtocolError(
                "invalid value in a call between roles: pickles are not allowed; to allow them, set "
                "`rpc: {pickle: true}` in the job file"
            )
        text = self._buffer(told[0])
        if not hmac.compare_digest(hashlib.sha256(text).hexdigest().encode(), told[1].encode("utf-8", "replace")):
            raise ProtocolError("invalid value in a call between roles: the SHA-256 digest of a pickle is wrong")
        try:
            return pickle.loads(text)  # noqa: S301  the job allows it, and the digest is signed with the job's secret
        except Exception as error:  # any class may define how it is unpickled
            raise ProtocolError(
                f"invalid value in a call between roles: a pickle cannot be loaded: {type(error).__name__}: {error}"
            ) from error


def _class(library: Any, name: str) -> Any:
    """Return a class of a library that may be half imported, or hidden by a test."""
    return getattr(library, name, ())


def _plain_scalar(value: int | float | str) -> int | float | str:  # noqa: PYI041  three cases
    if isinstance(value, str):
        return str.__str__(value)
    return int(value) if isinstance(value, int) else float(value)


def _dtype_name(dtype: Any) -> str:
    return str(dtype.str)


def _bytes_of(numpy: Any, array: Any) -> Buffer:
    """Return the memory of an array; of some types, such as dates, numpy has no buffer but of bytes."""
    return memoryview(array.reshape(-1).view(numpy.uint8)) if array.nbytes else b""


def _numpy_type(name: str) -> tuple[Any, Any]:
    numpy = _import("numpy", "numpy array")
    if not _DTYPE.fullmatch(name):
        raise ProtocolError(
            f"invalid value in a call between roles: array type {name[:40]!r} is not allowed; expected a NumPy type such as <f4"
        )
    try:
        return numpy, numpy.dtype(name)
    except (TypeError, ValueError) as error:
        raise ProtocolError(
            f"invalid value in a call between roles: array type {name!r} is not allowed; expected a NumPy type such as <f4"
        ) from error


def _dimensions(shape: Any) -> Sequence[int]:
    if not isinstance(shape, list) or len(shape) > _DIMENSIONS or not all(type(n) is int and 0 <= n < 1 << 62 for n in shape):
        raise ProtocolError(
            f"invalid value in a call between roles: shape {str(shape)[:80]} is not allowed; expected a list of at most "
            f"{_DIMENSIONS} whole numbers, none of them negative"
        )
    return shape


@contextlib.contextmanager
def _refused(shape: Sequence[int]) -> Iterator[None]:
    """Raise `ProtocolError` if a library refuses a shape: the product of the numbers is right, but one is too large."""
    try:
        yield
    except (ValueError, RuntimeError, OverflowError, TypeError) as error:
        raise ProtocolError(
            f"invalid value in a call between roles: shape {str(shape)[:80]} is not allowed: {error}"
        ) from error


def _require_size(buffer: Buffer, itemsize: int, shape: Sequence[int]) -> None:
    expected = itemsize * math.prod(shape)
    if len(buffer) != expected:
        raise ProtocolError(
            f"invalid value in a call between roles: an array or tensor has {len(buffer)} bytes of "
            f"data, but its type and shape require {expected}"
        )


def _import(name: str, what: str) -> Any:
    try:
        return __import__(name)
    except ImportError as error:
        raise ProtocolError(
            f"invalid value in a call between roles: it contains a {what}, but this process cannot import {name}"
        ) from error
