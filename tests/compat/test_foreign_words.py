"""Words of other products are written in `compat/` only, with the exceptions listed here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "rallypoint"

#: By product: its words, and the files outside of `compat/` that may contain them, each with the reason.
WORDS: dict[str, tuple[str, dict[str, str]]] = {
    "MindCluster": (
        r"mindcluster|mindx|mindio|mindspore|ascend's (scheduler|rules)|huawei\.com/recover|TorchAscend",
        {
            "profiles.py": "registers the package of the profile",
            "wire/plan.py": "the name of the profile in documents and plans",
            "job/arguments.py": "the notes of the reference page name the profile",
            "supervision/clocks.py": "the reference page of clocks names the settings of the profile",
        },
    ),
    "Kubeflow": (r"kubeflow trainer|KUBEFLOW_|trainerStatus", {}),
    "llutil": (r"llutil|torchx", {}),
}


@pytest.mark.parametrize("product", WORDS)
def test_no_other_file_has_words_of_a_product(product: str) -> None:
    """Neither in code nor in comments."""
    pattern, allowed = WORDS[product]
    assert found(pattern) == sorted(allowed)


def found(pattern: str) -> list[str]:
    """Return the files outside of `compat/` in which a pattern occurs."""
    paths = (path for path in PACKAGE.rglob("*.py") if "compat" not in path.parts)
    return sorted(str(path.relative_to(PACKAGE)) for path in paths if re.search(pattern, path.read_text(), re.IGNORECASE))
