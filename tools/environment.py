"""Make `.venv` from nothing with what development, the tests and the demo need; the second time there is nothing to do.

Runs with the interpreter that is to live in `.venv` and needs nothing but its standard library. A stamp file in `.venv` is
named by the hash of pyproject.toml and constraints.txt: as long as it is there, everything is as these two files say.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
EXTRAS = "client,agent,airflow,kubernetes,demo,dev"

#: The lines of pip that a person waits for: downloads of a megabyte and more, and the beginning of the long last step.
_DOWNLOAD = re.compile(r"\s*Downloading (?:\S*/)?([^\s/-]+-[^\s-]+)\S* \((\S+ [MG]B)\)")
_INSTALL = re.compile(r"Installing collected packages: (.*)")

#: A third of all source that nobody imports: packages' own tests, and one folder for each architecture of transformers.
_UNCOMPILED = r"site-packages/(?:.*/tests?/|torch/testing/_internal/|transformers/models/(?!auto/)\w+/)"


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
            print("[3/4] compiling what was installed ...", flush=True)
            _compile(VENV / "lib")
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
    print(f"[2/4] installing rallypoint[{EXTRAS}] at the versions of constraints.txt;", flush=True)
    print("      the first time this downloads about 1 GB, and more where torch comes with CUDA ...", flush=True)
    command = [str(PYTHON), "-m", "pip", "install", "--progress-bar=off", "--no-input", "--disable-pip-version-check"]
    # Compiled beside it, and what is left on all cores: pip would do that on one.
    command += ["--no-compile", "-c", "constraints.txt", "-e", f".[{EXTRAS}]"]
    command += ["--index-url", options.index] if options.index else []
    command += ["--extra-index-url", options.extra_index] if options.extra_index else []
    lines = []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        assert pip.stdout is not None
        beside = threading.Thread(target=_compile_beside, args=(pip,))
        beside.start()
        for line in pip.stdout:
            lines.append(line)
            if told := _progress(line):
                print(f"      {told}", flush=True)
        pip.wait()
        beside.join()
    if pip.returncode:
        print("".join(lines[-40:]), "pip failed; the lines above are its last", sep="\n", file=sys.stderr)
    return pip.returncode


def _compile_beside(pip: subprocess.Popen[str]) -> None:
    """Compile what pip has laid down while it lays down the next, until it ends: it keeps one core busy."""
    done: set[Path] = set()
    while pip.poll() is None:
        # The last file that pip writes of a distribution lists all that belongs to it.
        new = set(VENV.glob("lib/python3*/site-packages/*.dist-info/RECORD")) - done
        done |= new
        folders = {folder for record in new for folder in _folders(record)}
        if folders:
            _compile(*sorted(folders), cores=1)
        else:
            time.sleep(0.5)


def _folders(record: Path) -> set[Path]:
    """Return the folders of a distribution, without those for its scripts and for what is known of it."""
    with contextlib.suppress(FileNotFoundError):  # of a distribution that pip has just replaced
        names = {line.partition("/")[0] for line in record.read_text(encoding="utf-8").splitlines() if "/" in line}
        return {record.parents[1] / name for name in names if name != ".." and not name.endswith(".dist-info")}
    return set()


def _compile(*folders: Path, cores: int = 0) -> None:
    """Compile what was installed, wherever the environment says that imports must not (PYTHONDONTWRITEBYTECODE).

    A worker would compile torch anew each time it starts, for seconds. What is compiled already is left alone; what cannot be
    compiled (a template, a test of a syntax error) is nobody's to import, so the exit code says nothing. With no `cores` all
    are used.
    """
    command = [str(PYTHON), "-m", "compileall", "-q", "-j", str(cores), "-x", _UNCOMPILED, *map(str, folders)]
    subprocess.run(command, capture_output=True, check=False)


def _progress(line: str) -> str:
    if download := _DOWNLOAD.match(line):
        return f"downloading {download[1]} ({download[2]})"
    if install := _INSTALL.match(line):
        return f"installing {install[1].count(',') + 1} packages ..."
    return ""


def _remember(stamp: Path) -> None:
    for old in VENV.glob(".installed-*"):
        old.unlink()
    stamp.touch()


if __name__ == "__main__":
    sys.exit(main())
