"""Every pin has hashes, and the bill of materials names every pin."""

from __future__ import annotations

import json
import re
import subprocess
import sys

from tests.packaging.conftest import ROOT
from tools.sbom import bill, extras

PIN = re.compile(r"^([\w.-]+)==([^\s;\\]+)", re.MULTILINE)


def pins(name: str) -> set[tuple[str, str]]:
    """Return the names and versions in a file of constraints."""
    found = PIN.findall((ROOT / name).read_text())
    return {(re.sub(r"[-_.]+", "-", package).lower(), version) for package, version in found}


def test_every_pin_has_the_hashes_of_its_files():
    """`make lock` was run after the last change of constraints.txt."""
    text = (ROOT / "constraints-hashed.txt").read_text()
    blocks = re.split(r"^(?=[\w.-]+==)", text, flags=re.MULTILINE)[1:]

    assert pins("constraints-hashed.txt") == pins("constraints.txt")
    assert [block for block in blocks if not re.search(r"--hash=sha256:[0-9a-f]{64}\b", block)] == []
    assert "://" not in text


def test_the_bill_of_materials_names_every_pin(tmp_path):
    """`make sbom` writes it, and the same sources give the same one."""
    for name in ("a.json", "b.json"):
        command = [sys.executable, "tools/sbom.py", "--output", str(tmp_path / "dist" / name)]
        subprocess.run(command, cwd=ROOT, check=True)
    text = (tmp_path / "dist" / "a.json").read_text()
    found = json.loads(text)

    assert text == (tmp_path / "dist" / "b.json").read_text()
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.5")
    assert {(each["name"], each["version"]) for each in found["components"]} == pins("constraints.txt")
    asked = {each["name"]: [entry["value"] for entry in each.get("properties", [])] for each in found["components"]}
    assert asked["aiohttp"] == ["agent", "ray"]
    assert set(asked["pydantic"]) == {"airflow", "client", "ray"}
    assert {ref.partition("@")[0].removeprefix("pkg:pypi/") for ref in found["dependencies"][0]["dependsOn"]} <= set(extras())


def test_another_version_is_another_bill():
    """Its serial number tells them apart."""
    one, other = (bill("attrs==1.0 \\\n", version, {}) for version in ("1", "2"))

    assert one["serialNumber"] != other["serialNumber"]
