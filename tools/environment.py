"""Make `.venv` from nothing with what development, the tests and the demo need; the second time there is nothing to do.

Runs with the interpreter that is to live in `.venv` and needs nothing but its standard library. A stamp file in `.venv` is
named by the hash of pyproject.toml and constraints.txt: as long as it is there, everything is as these two files say.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
EXTRAS = "client,agent,airflow,kubernetes,demo,dev"

#: The lines of pip that a person waits for: downloads of a megabyte and more.
_DOWNLOAD = re.compile(r"\s*Downloading (?:\S*/)?([^\s/-]+-[^\s-]+)\S* \((\S+ [MG]B)\)")
_PIN = re.compile(r"(?P<name>[\w.-]+)==.*")

#: How many pips run side by side, and how many packages each is given at a time.
SIDE_BY_SIDE = max(2, min(4, os.cpu_count() or 2))
BATCH = 25

#: As large as a batch by itself.
LARGE = frozenset({"ray", "torch"})

#: Imported once after the installation, which compiles them: else each of several first processes would do that at once.
IMPORTED = (
    ("torch", "torch.distributed", "torch.distributed.checkpoint", "torch._dynamo", "torch.nn.parallel", "torch.testing"),
    (
        "airflow.models.dag",
        "airflow.cli.cli_parser",
        "airflow.sdk",
        "airflow.dag_processing.processor",
        "pytest",
        "_pytest.pytester",
        "xdist",
        "hypothesis",
        "aiohttp.web",
        "rich.console",
        "kubernetes.client",
        "sphinx.application",
        "grpc",
    ),
)

_PYTHON_OF_IMPORTS = """
import contextlib, importlib, sys
for name in sys.argv[1:]:
    with contextlib.suppress(Exception):
        importlib.import_module(name)
"""

#: Prints what the named extras of this distribution require and the environment lacks. pip would say so too, after ten seconds.
_PYTHON_OF_UNMET = r"""
import importlib.metadata as metadata, sys
from packaging.requirements import Requirement

def unmet(name, extras, seen):
    for text in metadata.requires(name) or ():
        one = Requirement(text)
        if one.marker and not any(one.marker.evaluate({"extra": extra}) for extra in extras):
            continue
        if (one.name, frozenset(one.extras)) in seen:
            continue
        seen.add((one.name, frozenset(one.extras)))
        try:
            version = metadata.version(one.name)
        except metadata.PackageNotFoundError:
            yield text
            continue
        if not one.specifier.contains(version, prereleases=True):
            yield text
        yield from unmet(one.name, ("", *one.extras), seen)

print(*unmet(sys.argv[1], ("", *sys.argv[2].split(",")), set()), sep="\n")
"""


def main() -> int:
    """Bring `.venv` up to date; returns the exit code of the first step that failed."""
    options = _parser().parse_args()
    if sys.version_info < (3, 10):  # noqa: UP036 - an older interpreter is what this line is for
        print(f"Python {sys.version.split()[0]} is too old; name one of 3.10 or newer: make PYTHON=python3.11", file=sys.stderr)
        return 1
    with _one_at_a_time():
        stamp = VENV / f".installed-{_digest()}"
        if stamp.exists():
            return 0
        began = time.monotonic()
        code = _create() or _install(options)
        if code == 0:
            print("[3/4] compiling what is imported most ...", flush=True)
            _compile()
            _remember(stamp)
            print(f"[4/4] .venv is ready after {time.monotonic() - began:.0f} s", flush=True)
        return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--index", default="", help="the package index to use instead of pip's own")
    parser.add_argument("--extra-index", default="", help="one more package index, for example one with CPU wheels of torch")
    return parser


def _digest() -> str:
    texts = [(ROOT / name).read_bytes() for name in ("pyproject.toml", "constraints.txt")]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:16]


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """`make demo` beside `make test` on a fresh clone must not install into the same folder twice."""
    folder = ROOT / ".make"
    folder.mkdir(exist_ok=True)
    with (folder / "environment.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another run that is preparing .venv ...", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _create() -> int:
    if PYTHON.exists() and subprocess.run([PYTHON, "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0:
        print("[1/4] .venv is there", flush=True)
        return 0
    print(f"[1/4] creating .venv with Python {sys.version.split()[0]} ...", flush=True)
    return subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], check=False).returncode


def _install(options: argparse.Namespace) -> int:
    """Install the pins several at a time, then this distribution; whatever is missing afterwards is left to pip's resolver."""
    print(f"[2/4] installing rallypoint[{EXTRAS}] at the versions of constraints.txt;", flush=True)
    print("      the first time this downloads about 1 GB, and more where torch comes with CUDA ...", flush=True)
    with ThreadPoolExecutor(max_workers=SIDE_BY_SIDE) as pool:
        # A pin that cannot be had is the resolver's to explain.
        list(pool.map(lambda pins: _pip(options, "--no-deps", *pins), batches(_pins())))
    own = ["--no-deps", "--no-build-isolation", "-e", "."]
    if _pip(options, *own).returncode == 0 and not _unmet():
        return 0
    resolved = _pip(options, "-c", "constraints.txt", "-e", f".[{EXTRAS}]")
    if resolved.returncode:
        print(resolved.stdout[-8000:], "pip failed; the lines above are its last", sep="\n", file=sys.stderr)
    return resolved.returncode


def _pins() -> list[str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if _PIN.match(line)]


def batches(pins: Sequence[str]) -> list[list[str]]:
    """Return the pins in batches, large packages first and each in a batch of its own."""
    large = [pin for pin in pins if pin.partition("==")[0] in LARGE]
    others = [pin for pin in pins if pin not in large]
    return [*([pin] for pin in sorted(large, reverse=True)), *(others[at : at + BATCH] for at in range(0, len(others), BATCH))]


def _pip(options: argparse.Namespace, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `pip install` to its end, and print what it downloads."""
    command = [str(PYTHON), "-m", "pip", "install", "--progress-bar=off", "--no-input", "--disable-pip-version-check"]
    command += ["--no-compile", *arguments]
    command += ["--index-url", options.index] if options.index else []
    command += ["--extra-index-url", options.extra_index] if options.extra_index else []
    lines = []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            lines.append(line)
            if download := _DOWNLOAD.match(line):
                print(f"      downloading {download[1]} ({download[2]})", flush=True)
    return subprocess.CompletedProcess(command, pip.returncode, "".join(lines))


def _unmet() -> bool:
    """Return whether the environment lacks anything that the extras require."""
    command = [str(PYTHON), "-c", _PYTHON_OF_UNMET, "airflow-provider-rallypoint", EXTRAS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode != 0 or bool(done.stdout.strip())


def _compile() -> None:
    """Import what most processes import, wherever the environment says that imports must not compile.

    All else is compiled by the process that imports it first. The exit codes say nothing: what cannot be imported here is told
    by the test that needs it.
    """
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    commands = [[str(PYTHON), "-W", "ignore", "-c", _PYTHON_OF_IMPORTS, *names] for names in IMPORTED]
    running = [
        subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for command in commands
    ]
    for process in running:
        process.wait()


def _remember(stamp: Path) -> None:
    for old in VENV.glob(".installed-*"):
        old.unlink()
    stamp.touch()


if __name__ == "__main__":
    sys.exit(main())
