"""Are labels, annotations and names such as Kubernetes takes? Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from rallypoint.backends.kubernetes.labels import DOMAIN
from rallypoint.backends.kubernetes.manifests.checks.place import DNS_NAME, Place, Wrong, is_dns_name
from rallypoint.job import Role

__all__ = ["check", "label_value"]

_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?", re.ASCII)
_KEY = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", re.ASCII)
_VALUES = "at most 63 letters, digits, '-', '_' and '.', with a letter or a digit at both ends"
_KEYS = "a name of at most 63 letters, digits, '-', '_' and '.', after an optional DNS name and '/'"
_ANNOTATION_BYTES = 256 * 1024

#: Fields of a role that name an object of the cluster.
_NAMES = ("service_account", "coordinator_service_account", "priority_class", "scheduler_name", "queue", "queue_priority")


def check(place: Place, role: Role) -> Iterator[Wrong]:
    """Yield each label, annotation and name that the API server would refuse."""
    metadata = role.pod_template.get("metadata") or {}
    template = place.at("pod_template", "metadata")
    for at, words in ((place.at("labels"), role.labels), (template.at("labels"), metadata.get("labels") or {})):
        yield from _labels(at, words)
    for at, words in (
        (place.at("annotations"), role.annotations),
        (template.at("annotations"), metadata.get("annotations") or {}),
    ):
        yield from _annotations(at, words)
    for key, text in role.node_selector.items():
        yield from _pair(place.at("node_selector"), key, text)
    for name in _NAMES:
        if getattr(role, name) and not is_dns_name(getattr(role, name)):
            yield place.at(name).refused(getattr(role, name), DNS_NAME)
    for index, name in enumerate(role.image_pull_secrets):
        if not is_dns_name(name):
            yield place.at("image_pull_secrets", index).refused(name, DNS_NAME)
    for index, host in enumerate(role.host_ignore_list):
        if not label_value(host):
            yield place.at("host_ignore_list", index).refused(host, f"a node name: {_VALUES}")


def label_value(value: object) -> bool:
    """Return whether `value` may be the value of a label."""
    return isinstance(value, str) and len(value) <= 63 and _VALUE.fullmatch(value) is not None


def _labels(at: Place, words: Any) -> Iterator[Wrong]:
    if not isinstance(words, Mapping):
        yield at.refused(words, "a mapping from names to strings")
        return
    for key, text in words.items():
        if key.startswith(DOMAIN):
            yield at.at(key).wrong("is not allowed; Rallypoint sets the labels of its own domain")
        yield from _pair(at, key, text)


def _pair(at: Place, key: str, text: object) -> Iterator[Wrong]:
    if not _is_key(key):
        yield at.at(key).wrong(f"is not a valid label name; expected {_KEYS}")
    if not label_value(text):
        yield at.at(key).refused(text, _VALUES)


def _annotations(at: Place, words: Any) -> Iterator[Wrong]:
    if not isinstance(words, Mapping) or not all(isinstance(text, str) for text in words.values()):
        yield at.refused(words, "a mapping from names to strings")
        return
    for key in words:
        if not _is_key(key):
            yield at.at(key).wrong(f"is not a valid annotation name; expected {_KEYS}")
    if sum(len(key) + len(text.encode()) for key, text in words.items()) > _ANNOTATION_BYTES:
        yield at.wrong("is not allowed; expected at most 256 KiB for all annotations together")


def _is_key(key: str) -> bool:
    domain, slash, name = key.rpartition("/")
    return (not slash or is_dns_name(domain)) and len(name) <= 63 and _KEY.fullmatch(name) is not None
