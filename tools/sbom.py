"""Write the software bill of materials of a release: CycloneDX JSON with every package that constraints-hashed.txt pins."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
HASHED, VERSION, PROJECT = ROOT / "constraints-hashed.txt", ROOT / "rallypoint" / "version.py", ROOT / "pyproject.toml"
NAME = "airflow-provider-rallypoint"

_PIN = re.compile(r"^([\w.-]+)==([^\s;\\]+)", re.MULTILINE)


def main() -> int:
    """Write the file that is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True, metavar="FILE")
    output: Path = parser.parse_args().output
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(bill(HASHED.read_text(), _version(), extras()), indent=2) + "\n")
    return 0


def bill(pins: str, version: str, extras: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return the document; the same pins and version give the same one."""
    digest = hashlib.sha256(f"{version}\n{pins}".encode()).hexdigest()
    root = f"pkg:pypi/{NAME}@{version}"
    components = [_component(name, release, extras.get(name, [])) for name, release in sorted(set(_PIN.findall(pins)))]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.UUID(digest[:32])}",
        "version": 1,
        "metadata": {"component": {"type": "library", "bom-ref": root, "name": NAME, "version": version, "purl": root}},
        "components": components,
        "dependencies": [{"ref": root, "dependsOn": [each["bom-ref"] for each in components if "properties" in each]}],
    }


def extras() -> dict[str, list[str]]:
    """Return the extras of pyproject.toml that ask for a package, by its normal name."""
    section = PROJECT.read_text().split("[project.optional-dependencies]")[1].split("\n[project.scripts]")[0]
    found: dict[str, list[str]] = {}
    for extra, listed in re.findall(r"^([\w-]+) = \[(.*?)\]$", section, re.MULTILINE | re.DOTALL):
        for requirement in re.findall(r'"([\w.-]+)', listed):
            found.setdefault(_normal(requirement), []).append(extra)
    return found


def _component(name: str, version: str, asked_by: list[str]) -> dict[str, Any]:
    purl = f"pkg:pypi/{_normal(name)}@{version}"
    component = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    return component if not asked_by else {**component, "properties": list(_properties(asked_by))}


def _properties(asked_by: list[str]) -> Iterator[dict[str, str]]:
    for extra in asked_by:
        yield {"name": "rallypoint:extra", "value": extra}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _version() -> str:
    return VERSION.read_text().split('__version__ = "')[1].split('"')[0]


if __name__ == "__main__":
    sys.exit(main())
