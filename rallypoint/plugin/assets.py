"""The files of the page: read once, named by what is in them, so that a browser may keep them for ever."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

__all__ = ["CSP", "Asset", "Assets", "load"]

#: Nothing from anywhere else, nothing inline, and shown by Airflow's own pages alone.
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)

_TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}


@dataclass(frozen=True, kw_only=True)
class Asset:
    """One file."""

    body: bytes
    media_type: str


@dataclass(frozen=True, kw_only=True)
class Assets:
    """All files. `digest` is another one when any of them is; `page` is the document, which names them by it."""

    digest: str
    page: bytes
    files: Mapping[str, Asset]


def load() -> Assets:
    """Read the files of this distribution."""
    files, page = {}, b""
    for file in sorted(resources.files("rallypoint.plugin").joinpath("static").iterdir(), key=lambda f: f.name):
        suffix = "." + file.name.rpartition(".")[2]
        if file.name == "page.html":
            page = file.read_bytes()
        elif suffix in _TYPES:
            files[file.name] = Asset(body=file.read_bytes(), media_type=_TYPES[suffix])
    digest = hashlib.sha256(b"".join(name.encode() + asset.body for name, asset in files.items())).hexdigest()[:16]
    return Assets(digest=digest, page=page.replace(b"{digest}", digest.encode()), files=files)
