"""Pickle a Python function and its arguments for the workers of a job; see wire/function.py."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import inspect
import json
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rallypoint.job import ElasticJob, JobError
from rallypoint.job.errors import Problem
from rallypoint.wire import codec
from rallypoint.wire.codec import WireError
from rallypoint.wire.function import FUNCTION_LIMIT, SentFunction
from rallypoint.wire.result import arguments_text

__all__ = ["FunctionJob", "pack"]

_DIGITS = 16


@dataclass(frozen=True, kw_only=True)
class FunctionJob:
    """A job whose workers call a function; `function` is the file with the pickled function."""

    job: ElasticJob
    function: SentFunction

    @property
    def name(self) -> str:
        """Of the job."""
        return self.job.name

    @property
    def text(self) -> str:
        """Content of the file. Raises `JobError` for more than `FUNCTION_LIMIT` bytes."""
        text = codec.dumps(self.function)
        if len(text.encode()) > FUNCTION_LIMIT:
            size, name = len(text.encode()), self.function.name
            raise _wrong(
                "python_callable",
                f"the pickled function {name} has {size} bytes with its data; expected at most {FUNCTION_LIMIT} bytes; read "
                "large data from a disk instead",
            )
        return text


def pack(function: Callable[..., Any], args: Collection[Any], kwargs: Mapping[str, Any]) -> SentFunction:
    """Return a function and its arguments in pickled form.

    The function's own module is pickled by value, because workers cannot import a DAG file; workers import its imports.

    Raises:
        JobError: an argument is not JSON, all arguments have more than 48 KiB, or the function cannot be pickled.
    """
    name = getattr(function, "__qualname__", type(function).__name__)
    try:
        told = arguments_text({"args": list(args), "kwargs": dict(kwargs)})
    except WireError as error:
        raise _wrong("op_args", str(error)) from error
    # The worker gets the arguments after a round trip through JSON: a tuple becomes a list.
    plain = json.loads(told)
    return SentFunction(
        name=name,
        digest=_digest(function, name, plain),
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        pickled=base64.b64encode(_pickled(function, name)).decode(),
        args=tuple(plain["args"]),
        kwargs=plain["kwargs"],
    )


def _digest(function: Callable[..., Any], name: str, arguments: Mapping[str, Any]) -> str:
    """Return a digest of a function's source: its pickle differs between processes, and a retry must find its job again."""
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):  # a function without a source file
        code = getattr(function, "__code__", None)
        source = repr((code.co_code, code.co_names, code.co_varnames)) if code is not None else name
    text = json.dumps([name, source, arguments], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def _pickled(function: Callable[..., Any], name: str) -> bytes:
    try:
        import cloudpickle  # noqa: PLC0415  only who sends a function needs it
    except ImportError as error:
        raise _wrong("python_callable", "the package cloudpickle is not installed; pip install cloudpickle") from error
    with _by_value(cloudpickle, function):
        try:
            pickled: bytes = cloudpickle.dumps(function)
        except Exception as error:  # objects that the function refers to may raise any error
            raise _wrong("python_callable", f"function {name} cannot be pickled: {error}") from error
    return pickled


@contextlib.contextmanager
def _by_value(cloudpickle: Any, function: Callable[..., Any]) -> Iterator[None]:
    module = sys.modules.get(getattr(function, "__module__", "") or "")
    if module is None or module.__name__ in cloudpickle.list_registry_pickle_by_value():
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _wrong(field: str, text: str) -> JobError:
    return JobError([Problem(path=field, text=text)])
