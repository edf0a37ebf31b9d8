"""Words of other products are written in `compat/` only, with the exceptions listed here."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "rallypoint"

#: By product: its words, and the files outside of `compat/` that may contain them, each with the reason.
WORDS: dict[str, tuple[str, dict[str, str]]] = {
    "MindCluster": (
        r"mindcluster|mindx|mindio|mindspore|ascend's (scheduler|rules)|huawei\.com/recover|TorchAscend",
        {
            "profiles.py": "registers the package of the profile",
            "wire/plan.py": "the name of the profile in documents and plans, and the profile's part of a plan",
            "job/arguments.py": "the notes of the reference page name the profile",
            "supervision/clocks.py": "the reference page of clocks names the settings of the profile",
        },
    ),
    "Kubeflow": (
        r"kubeflow|trainerStatus",
        {
            "backends/kubernetes/labels.py": "label of PyTorchJobs, a kind that the backend runs",
            "backends/kubernetes/rbac.py": "API group of PyTorchJobs",
            "backends/kubernetes/wrapped/kinds.py": "API group of PyTorchJobs",
            "backends/kubernetes/wrapped/podsets.py": "API group of PyTorchJobs",
            "capabilities/__init__.py": "registers the package of the status protocol",
        },
    ),
    "llutil": (r"llutil|torchx", {}),
}

#: Files outside of `compat/` whose code has a name or text with DLRover's name, because it is a documented interface.
DLROVER = {
    "capabilities/tuned_batch/parallel_config.py": "variable that names the file of the batch size for unchanged scripts",
    "job/builder/builder.py": "method by_dlrover_run_cmd of JobBuilder",
    "job/builder/command.py": "dlrover-run, a launcher whose command lines are read",
    "job/builder/job.py": "beginning of the names of jobs without a name",
    "job/builder/settings.py": "variables DLROVER_UNIFIED_*",
    "job/schema.py": "descriptions of arguments in the JSON schema",
    "provider/connections/connection.py": "error of a connection whose arguments are not allowed",
    "provider/info.py": "help of the connection form",
    "wire/pre_check.py": "module of the operators that the argument pre_check_ops names",
}

#: Packages whose comments do not mention DLRover either: they contain no part of its interface.
WITHOUT = (
    "agent/coordinator",
    "agent/launch",
    "agent/rendezvous",
    "agent/transport",
    "agent/units",
    "agent/workers",
    "backends",
    "checkpoint",
    "kube",
    "operators",
    "plugin",
    "report",
    "sensors",
    "simulation",
    "supervision",
    "training",
)


@pytest.mark.parametrize("product", WORDS)
def test_no_other_file_has_words_of_a_product(product: str) -> None:
    """Neither in code nor in comments."""
    pattern, allowed = WORDS[product]
    assert sorted(name for name, text in sources() if re.search(pattern, text, re.IGNORECASE)) == sorted(allowed)


def test_only_documented_interfaces_of_dlrover_are_in_code() -> None:
    """A comment may say where an interface comes from; names and texts of code are in `compat/dlrover`."""
    allowed = sorted(name for name in DLROVER if (PACKAGE / name).parent.is_dir())  # a capability's folder may be deleted
    named = [(name, text) for name, text in sources() if "dlrover" in text.lower()]
    assert sorted(name for name, text in named if "dlrover" in " ".join(code(text)).lower()) == allowed


def test_no_core_package_mentions_dlrover() -> None:
    """Not in comments either."""
    named = [name for name, text in sources() if name.startswith(WITHOUT) and "dlrover" in text.lower()]
    assert (named, [folder for folder in WITHOUT if not (PACKAGE / folder).is_dir()]) == ([], [])


def test_names_of_files_have_no_words_of_a_product() -> None:
    """Nor those of folders."""
    names = " ".join(name for name, _ in sources())
    assert re.findall("dlrover|mindcluster|kubeflow|llutil|launch_agent", names) == []


def sources() -> Iterator[tuple[str, str]]:
    """Yield the files outside of `compat/` with their texts."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if "compat" not in path.relative_to(PACKAGE).parts:
            yield path.relative_to(PACKAGE).as_posix(), path.read_text(encoding="utf-8")


def code(text: str) -> Iterator[str]:
    """Yield the tokens of a module without its comments and docstrings."""
    docs: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docs |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT and token.start[0] not in docs:
            yield token.string
