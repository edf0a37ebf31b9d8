"""The commands of kubectl that the tutorials use, for machines without kubectl: create, apply, get and delete."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import yaml

_PLURALS = {
    "Namespace": "namespaces",
    "ServiceAccount": "serviceaccounts",
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "configmap": "configmaps",
    "pod": "pods",
}


def main() -> int:
    """Run one command."""
    parser = argparse.ArgumentParser(prog="kubectl")
    parser.add_argument("verb", choices=("create", "apply", "get", "delete"))
    parser.add_argument("words", nargs="*")
    parser.add_argument("-n", "--namespace", default="default")
    parser.add_argument("-f", "--filename", default="")
    parser.add_argument("-l", "--selector", default="")
    parser.add_argument("-o", "--output", default="")
    options = parser.parse_intermixed_args()
    if options.verb == "create" and options.words[:1] == ["namespace"]:
        request("POST", "/api/v1/namespaces", {"metadata": {"name": options.words[1]}})
        print(f"namespace/{options.words[1]} created")
    elif options.verb == "apply":
        text = sys.stdin.read() if options.filename == "-" else Path(options.filename).read_text()
        for manifest in filter(None, yaml.safe_load_all(text)):
            apply(manifest)
    elif options.verb == "get":
        found = request("GET", place("v1", options.words[0], options.namespace) + f"/{options.words[1]}")
        print(value(found, options.output.removeprefix("jsonpath=")))
    else:
        delete(options.words[0], options.namespace, options.selector)
    return 0


def apply(manifest: dict[str, Any]) -> None:
    """Create an object."""
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    request("POST", place(manifest["apiVersion"], kind, manifest["metadata"].get("namespace", "")), manifest)
    group = manifest["apiVersion"].partition("/")[0] if "/" in manifest["apiVersion"] else ""
    print(f"{kind.lower()}{f'.{group}' if group else ''}/{name} created")


def delete(kind: str, namespace: str, selector: str) -> None:
    """Delete the objects that a selector names."""
    root = place("v1", kind, namespace)
    for item in request("GET", f"{root}?labelSelector={selector}")["items"]:
        name = item["metadata"]["name"]
        request("DELETE", f"{root}/{name}")
        print(f'{kind} "{name}" deleted')


def place(version: str, kind: str, namespace: str) -> str:
    """Return the path of a kind of object."""
    root = f"/api/{version}" if version == "v1" else f"/apis/{version}"
    middle = f"/namespaces/{namespace}" if namespace else ""
    return f"{root}{middle}/{_PLURALS[kind]}"


def value(found: Any, path: str) -> str:
    """Return a field by a path such as `{.metadata.name}`."""
    for step in re.findall(r"\w+", path):
        found = found[step]
    return str(found)


def request(method: str, path: str, body: Any = None) -> Any:
    """Send a request to the cluster of KUBECONFIG; return the answer."""
    config = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {config['users'][0]['user']['token']}"}
    data = None if body is None else json.dumps(body).encode()
    url = config["clusters"][0]["cluster"]["server"] + path
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, data=data, headers=headers, method=method), timeout=60) as response:
            return json.loads(response.read())
    except urllib.error.HTTPError as error:
        raise SystemExit(f"kubectl: {method} {path}: {error.code} {error.read().decode()[:500]}") from error


if __name__ == "__main__":
    sys.exit(main())
