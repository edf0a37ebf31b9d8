"""Label and field selectors, as query parameters spell them."""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.emulator.bodies import Body
from tests.emulator.errors import bad_request

__all__ = ["Matcher", "by_fields", "by_labels", "selector"]

Matcher = Callable[[Body], bool]

_SET = re.compile(r"^([\w./-]+)\s+(in|notin)\s*\(([^)]*)\)$")
_EQUAL = re.compile(r"^([\w./-]+)\s*(==|=|!=)\s*([\w.-]*)$")
_EXISTS = re.compile(r"^(!?)\s*([\w./-]+)$")
_OUTSIDE_BRACES = re.compile(r",(?![^(]*\))")

#: What may be selected by, beside name and namespace.
FIELDS = {
    "pods": (
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "status.phase",
        "status.podIP",
    ),
    "events": (
        "involvedObject.name",
        "involvedObject.namespace",
        "involvedObject.kind",
        "involvedObject.uid",
        "reason",
        "type",
    ),
    "secrets": ("type",),
    "namespaces": ("status.phase",),
    "nodes": ("spec.unschedulable",),
}


def selector(key: str, label_text: str, field_text: str) -> Matcher:
    """Both selectors of a request for objects of the kind `key` as one question."""
    tests = [*by_labels(label_text), *by_fields(key, field_text)]
    return lambda body: all(test(body) for test in tests)


def by_labels(text: str) -> list[Matcher]:
    return [_label(part.strip()) for part in _OUTSIDE_BRACES.split(text) if part.strip()]


def by_fields(key: str, text: str) -> list[Matcher]:
    return [_field(key, part.strip()) for part in text.split(",") if part.strip()]


def _label(part: str) -> Matcher:
    if found := _SET.match(part):
        name, word, listed = found.groups()
        values = {value.strip() for value in listed.split(",")}
        return (lambda body: _of(body, name) in values) if word == "in" else (lambda body: _of(body, name) not in values)
    if found := _EQUAL.match(part):
        name, sign, value = found.groups()
        return (lambda body: _of(body, name) != value) if sign == "!=" else (lambda body: _of(body, name) == value)
    if found := _EXISTS.match(part):
        no, name = found.groups()
        return lambda body: (_of(body, name) is None) is bool(no)
    raise bad_request(f"unable to parse requirement: {part!r}")


def _of(body: Body, name: str) -> str | None:
    return (body["metadata"].get("labels") or {}).get(name)


def _field(key: str, part: str) -> Matcher:
    found = re.match(r"^([\w.]+)\s*(==|=|!=)\s*(.*)$", part)
    if not found:
        raise bad_request(f"invalid selector: {part!r}; can't understand {part!r}")
    path, sign, value = found.groups()
    if path not in {"metadata.name", "metadata.namespace", *FIELDS.get(key, ())}:
        raise bad_request(f'field label not supported: "{path}"')
    steps = path.split(".")
    return lambda body: (_at(body, steps) == value) is (sign != "!=")


def _at(body: Body, steps: list[str]) -> str:
    value: object = body
    for step in steps:
        value = value.get(step) if isinstance(value, dict) else None
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
