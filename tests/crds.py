"""The schemas of custom resources: is an object one that the API server would take, without a field that it would drop?"""

from __future__ import annotations

import functools
import gzip
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import yaml

__all__ = ["FOLDER", "problems"]

FOLDER = Path(__file__).parent / "data" / "crds"

#: Kinds by the file that defines them.
_FILES = {
    "AppWrapper": "appwrappers",
    "JobSet": "jobsets",
    "PyTorchJob": "pytorchjobs",
    "RayCluster": "rayclusters",
    "RayJob": "rayjobs",
    "TrainJob": "trainjobs",
}

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_PRESERVE = "x-kubernetes-preserve-unknown-fields"
_INT_OR_STRING = "x-kubernetes-int-or-string"
_EMBEDDED = "x-kubernetes-embedded-resource"


def problems(item: Mapping[str, Any]) -> list[str]:
    """What is wrong with an object of one of these kinds: `path: message`, an empty list for a good one.

    An unknown field is wrong here: the API server drops it without a word.
    """
    version = str(item["apiVersion"])
    errors = _validator(item["kind"], version).iter_errors(item)
    return sorted(f"{'.'.join(map(str, error.absolute_path)) or 'object'}: {error.message}" for error in errors)


@functools.cache
def _validator(kind: str, api_version: str) -> Any:
    definition = yaml.load(gzip.decompress((FOLDER / f"{_FILES[kind]}.yaml.gz").read_bytes()), Loader=_LOADER)
    spec = definition["spec"]
    served = {f"{spec['group']}/{version['name']}": version for version in spec["versions"]}
    assert spec["names"]["kind"] == kind
    assert api_version in served, f"{kind}: {api_version} is not among {', '.join(served)}"
    schema = _strict(served[api_version]["schema"]["openAPIV3Schema"], top=True)
    return jsonschema.Draft202012Validator(schema)


def _strict(schema: Mapping[str, Any], *, top: bool = False) -> dict[str, Any]:
    """A structural schema as a JSON schema that knows its fields."""
    told = {key: value for key, value in schema.items() if not key.startswith("x-") and key not in {"format", "nullable"}}
    if schema.get(_INT_OR_STRING):
        told.pop("type", None)
        return {**told, "anyOf": [{"type": "integer"}, {"type": "string"}]}
    if "properties" in told:
        told["properties"] = {name: _strict(part) for name, part in told["properties"].items()}
        if top or schema.get(_EMBEDDED):
            told["properties"] = {**told["properties"], **{key: {} for key in ("apiVersion", "kind", "metadata")}}
        if not schema.get(_PRESERVE) and not schema.get(_EMBEDDED):
            told.setdefault("additionalProperties", False)
    for key in ("items", "additionalProperties"):
        if isinstance(told.get(key), Mapping):
            told[key] = _strict(told[key])
    # A CEL rule (`x-kubernetes-validations`) is the API server's to check.
    if schema.get("nullable") and isinstance(told.get("type"), str):
        told["type"] = [told["type"], "null"]
    return told
