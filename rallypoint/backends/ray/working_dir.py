"""A local folder as a package for Ray: a zip file that is named by its content. Blocks."""

from __future__ import annotations

import fnmatch
import hashlib
import io
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rallypoint.backends.contract import SubmitError

__all__ = ["LIMIT", "local_folder", "package"]

#: Bytes of the largest package that the dashboard of Ray accepts.
LIMIT = 100 << 20

#: Never uploaded.
_SKIPPED = ("__pycache__", ".git", ".venv", ".mypy_cache", ".ruff_cache", ".pytest_cache")

_EPOCH = (1980, 1, 1, 0, 0, 0)


def local_folder(runtime_env: Mapping[str, Any]) -> str:
    """Return the folder of this machine that a runtime environment names; "" for none, and for the URI of a package."""
    folder = str(runtime_env.get("working_dir") or "")
    return "" if "://" in folder else folder


def package(folder: str, excludes: tuple[str, ...] = ()) -> tuple[str, bytes]:
    """Return the name and the bytes of the package of a folder; the same content has the same name. Raises `SubmitError`."""
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise SubmitError(f"runtime_env.working_dir: {folder!r} is not a folder; expected a folder or a URI of a package")
    buffer, size = io.BytesIO(), 0
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(_files(root, excludes)):
            content = path.read_bytes()
            size += len(content)
            if size > LIMIT:
                raise SubmitError(
                    f"runtime_env.working_dir: {folder!r} has more than {LIMIT >> 20} MiB; exclude files with "
                    "runtime_env.excludes"
                )
            entry = zipfile.ZipInfo(str(path.relative_to(root)), _EPOCH)
            entry.external_attr = (path.stat().st_mode & 0o777 | 0o100000) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    content = buffer.getvalue()
    return f"_ray_pkg_{hashlib.sha256(content).hexdigest()[:16]}.zip", content


def _files(root: Path, excludes: tuple[str, ...]) -> Iterator[Path]:
    for path in root.rglob("*"):
        parts = path.relative_to(root).parts
        name = "/".join(parts)
        skipped = any(part in _SKIPPED for part in parts) or any(
            fnmatch.fnmatch(name, pattern) or fnmatch.fnmatch(f"{name}/", pattern) or name.startswith(pattern.rstrip("/") + "/")
            for pattern in excludes
        )
        if not skipped and path.is_file() and not path.is_symlink():
            yield path
