"""The command line and the environment of a container, and what is wrong with them before it can start."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.emulator.bodies import Body
from tests.emulator.kubelet.expansion import expanded
from tests.emulator.kubelet.fields import field_value, resource_value
from tests.emulator.kubelet.volumes import ACCOUNT_PATH, Mounts, decoded
from tests.emulator.store import Store

__all__ = ["ConfigError", "check_user", "command_of", "environment_of", "image_environment"]

_HOST = re.compile(r"//([-a-z0-9]+\.[-a-z0-9]+)\.[-a-z0-9]+\.svc(?=:)")
_NAME = re.compile(r"[-a-z0-9]+\.[-a-z0-9]+")


class ConfigError(Exception):
    """A container that cannot be created as it is configured: its message is that of the waiting container."""


#: Variables that a real kubelet does not set.
_OF_IMAGES = frozenset({"PATH", "HOME", "LANG", "TMPDIR", "RALLYPOINT_API_SERVER", "RALLYPOINT_SERVICE_ACCOUNT"})

#: An address at which nothing listens: that of the API server's Service where nothing routes to it.
_NOWHERE = "http://127.255.255.254:9"


def image_environment(url: str, extra: Mapping[str, str], folder: Path, *, routing: bool = True) -> dict[str, str]:
    """What every container starts with: a PATH on which `python` is this interpreter, and where the API server is.

    The API server speaks plain HTTP, which no client expects at KUBERNETES_SERVICE_HOST: RALLYPOINT_API_SERVER says so.
    """
    url = url if routing else _NOWHERE
    host, _, port = url.partition("//")[2].partition(":")
    return {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "HOME": str(folder),
        "LANG": "C.UTF-8",
        "KUBERNETES_SERVICE_HOST": host,
        "KUBERNETES_SERVICE_PORT": port,
        "RALLYPOINT_API_SERVER": url,
        **extra,
    }


def environment_of(pod: Body, container: Body, store: Store, mounts: Mounts, base: Mapping[str, str]) -> dict[str, str]:
    """All variables, each with those before it expanded in its value, and paths of mounts rewritten."""
    variables = dict(base)
    if (account := mounts.of(ACCOUNT_PATH)) is not None:
        variables["RALLYPOINT_SERVICE_ACCOUNT"] = str(account)
    if (scratch := mounts.of("/tmp")) is not None:
        variables["TMPDIR"] = str(scratch)
    given: dict[str, str] = {}
    for source in container.get("envFrom") or []:
        given.update(_all_of(pod, source, store))
    for entry in container.get("env") or []:
        value = expanded(entry["value"], given) if "value" in entry else _referred(pod, container, entry, store)
        if value is not None:
            given[entry["name"]] = value
    rewritten = {name: mounts.rewrite(value) for name, value in given.items()}
    return {**variables, **{name: _resolved(pod, value, store) for name, value in rewritten.items()}}


def _resolved(pod: Body, text: str, store: Store) -> str:
    """The addresses of pods for their names in the cluster's DNS, which no process of this machine can ask for."""
    namespace = pod["metadata"]["namespace"]
    for found in _HOST.findall(text):
        text = text.replace(f"{found}.{namespace}.svc", _address(pod, found, store))
    if _NAME.fullmatch(text) and text.rpartition(".")[2] == pod["spec"].get("subdomain"):
        return _address(pod, text, store)
    return text


def _address(pod: Body, name: str, store: Store) -> str:
    host, _, subdomain = name.partition(".")
    bodies = [pod, *(one.body for one in store.all("pods", pod["metadata"]["namespace"]))]
    at = [
        (body.get("status") or {}).get("podIP", "")
        for body in bodies
        if (body["spec"].get("hostname"), body["spec"].get("subdomain")) == (host, subdomain)
        and "deletionTimestamp" not in body["metadata"]
    ]
    address = next((each for each in at if each), "")
    if not address:
        raise ConfigError(f"no address of {name} yet: names are looked up here before a container starts")
    return str(address)


def check_user(pod: Body, container: Body, *, root: bool) -> None:
    """Raise `ConfigError` where a container must not run as root and would; `root`: the user of its image is root."""
    shared, own = (part.get("securityContext") or {} for part in (pod["spec"], container))
    user = own.get("runAsUser", shared.get("runAsUser"))
    if own.get("runAsNonRoot", shared.get("runAsNonRoot")) and (root if user is None else user == 0):
        name = f"{pod['metadata']['name']}_{pod['metadata']['namespace']}({pod['metadata']['uid']})"
        how = "image will run as root" if user is None else "container's runAsUser breaks non-root policy"
        raise ConfigError(f'container has runAsNonRoot and {how} (pod: "{name}", container: {container["name"]})')


def command_of(container: Body, environment: Mapping[str, str], mounts: Mounts) -> list[str]:
    """The argv; ConfigError where the container names none: there is no image here that would have one.

    The kubelet knows the variables that it sets, and none of the image.
    """
    argv = [*(container.get("command") or []), *(container.get("args") or [])]
    if not argv:
        raise ConfigError("no command specified: images are not run here, so a container needs a command")
    set_here = {entry["name"] for entry in container.get("env") or []}
    known = {name: value for name, value in environment.items() if name in set_here or name not in _OF_IMAGES}
    return [mounts.rewrite(expanded(part, known)) for part in argv]


def _referred(pod: Body, container: Body, entry: Body, store: Store) -> str | None:
    source = entry.get("valueFrom") or {}
    if "fieldRef" in source:
        return field_value(pod, source["fieldRef"]["fieldPath"])
    if "resourceFieldRef" in source:
        return resource_value(pod, container, source["resourceFieldRef"])
    for field, key in (("secretKeyRef", "secrets"), ("configMapKeyRef", "configmaps")):
        if field in source:
            return _key_of(pod, source[field], key, store)
    return ""


def _key_of(pod: Body, reference: Body, key: str, store: Store) -> str | None:
    namespace, name = pod["metadata"]["namespace"], reference.get("name", "")
    kind = {"secrets": "secret", "configmaps": "configmap"}[key]
    found = store.get(key, namespace, name)
    data = decoded(key, found.body) if found else {}
    if reference["key"] in data:
        return data[reference["key"]].decode()
    if reference.get("optional"):
        return None
    if found is None:
        raise ConfigError(f'{kind} "{name}" not found')
    raise ConfigError(f"couldn't find key {reference['key']} in {kind.capitalize()} {namespace}/{name}")


def _all_of(pod: Body, source: Body, store: Store) -> dict[str, str]:
    field, key = ("secretRef", "secrets") if "secretRef" in source else ("configMapRef", "configmaps")
    reference = source[field]
    found = store.get(key, pod["metadata"]["namespace"], reference.get("name", ""))
    if found is None:
        if reference.get("optional"):
            return {}
        raise ConfigError(f'{key[:-1]} "{reference.get("name")}" not found')
    return {f"{source.get('prefix', '')}{name}": value.decode() for name, value in decoded(key, found.body).items()}
