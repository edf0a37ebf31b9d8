"""Mutual TLS of one process: its certificate, the accepted peers, and the renewal of both at run time.

Both sides of each connection present a certificate of the job. A certificate names the job and no address (`wire/tls.py`), so
the addresses of pods may change. Changed files are read within seconds: existing connections continue, new ones use the new
certificate. A job can therefore run longer than its certificates are valid, if the files are renewed.
"""

from __future__ import annotations

import contextlib
import logging
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rallypoint.agent.errors import ConfigError
from rallypoint.wire.plan import Plan
from rallypoint.wire.tls import AUTHORITY, CERTIFICATE, KEY, OFF, PEER_FILES, peer_name

__all__ = ["HANDSHAKE", "Tls", "explain", "is_of_job", "job_tls", "names_in", "read_tls", "watched_tls"]

log = logging.getLogger("rallypoint.tls")

#: Seconds that a handshake may take.
HANDSHAKE = 5

#: Seconds between two checks of the files; the kubelet needs a minute or two to replace those of a Secret.
_LOOK = 5.0

#: Seconds before the expiry of a certificate at which warnings start, and seconds between two warnings.
_SOON, _AGAIN = 86400.0, 3600.0

#: Seconds in which a renewal writes all files, and seconds between two attempts to read them meanwhile.
_WRITTEN, _PAUSE = 1.0, 0.05

_BEGIN = b"-----BEGIN CERTIFICATE-----"

_OF_SSL = (ssl.SSLError, ssl.SSLCertVerificationError)

_REASONS: Mapping[str, str] = {
    "WRONG_VERSION_NUMBER": "the peer does not use TLS",
    "HTTP_REQUEST": "the peer does not use TLS",
    "RECORD_LAYER_FAILURE": "the peer does not use TLS",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the peer has sent no certificate of this job",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the peer requires a certificate of this job",
    "TLSV1_ALERT_UNKNOWN_CA": "the peer rejects the certificate of this process: it is signed by an unknown authority",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the peer rejects the certificate of this process: it has expired",
}


@dataclass(frozen=True, kw_only=True)
class _Loaded:
    """Content of the files; `begins` and `ends` say when the certificate is valid, in seconds since the epoch."""

    pem: tuple[bytes, ...]
    server: ssl.SSLContext
    open_server: ssl.SSLContext
    client: ssl.SSLContext
    begins: float
    ends: float


class Tls:
    """The certificates of one process; all methods are safe in any thread.

    Attributes:
        name: the DNS name that a peer's certificate must have.
        folder: with the files.
    """

    def __init__(self, folder: Path, name: str, *, look: float = _LOOK) -> None:
        self.folder, self.name, self._look = folder, name, look
        self._loaded = _load_settled(folder)
        self._warned = -_AGAIN
        self._closed = threading.Event()

    @property
    def server(self) -> ssl.SSLContext:
        """Context of servers for processes of the job only: a client needs a certificate."""
        return self._loaded.server

    @property
    def open_server(self) -> ssl.SSLContext:
        """Context of servers for other clients, too: a client certificate is optional, but must be valid."""
        return self._loaded.open_server

    @property
    def client(self) -> ssl.SSLContext:
        """Context of client connections to other processes of the job, with `server_hostname` set to `name`."""
        return self._loaded.client

    @property
    def pem(self) -> tuple[bytes, ...]:
        """The authority, the certificate and its key, for gRPC."""
        return self._loaded.pem

    def watch(self) -> None:
        """Read the files again whenever they change, in a thread, for as long as the process lives or until `close`."""
        threading.Thread(target=self._watch, name="rallypoint-tls", daemon=True).start()

    def close(self) -> None:
        """Stop checking the files."""
        self._closed.set()

    def refresh(self) -> bool:
        """Read the files if they have changed, and return whether they were replaced; invalid files are ignored."""
        try:
            if _read(self.folder) == self._loaded.pem:
                return False
            self._loaded = _load(self.folder)
        except ConfigError as error:
            log.warning("the agent cannot read the new TLS certificate (%s); it keeps its present TLS certificate", error)
            return False
        log.info("the agent uses the new TLS certificate %s for new connections", self.folder / CERTIFICATE)
        return True

    def hint(self) -> str:
        """Return a defect of this process's certificate that may make peers close connections: "" or a clause."""
        now = time.time()
        defect = "has expired" if now > self._loaded.ends else "is not valid yet" if now < self._loaded.begins else ""
        return f"; {self.folder / CERTIFICATE} {defect}" if defect else ""

    def _watch(self) -> None:
        while not self._closed.wait(self._look):
            self.refresh()
            self.warn(time.time())

    def warn(self, now: float) -> None:
        """Log a warning once an hour if the certificate expires within a day, has expired or is not valid yet."""
        left, early = self._loaded.ends - now, self._loaded.begins - now
        if (left > _SOON and early <= 0) or now - self._warned < _AGAIN:
            return
        self._warned = now
        path, hours = self.folder / CERTIFICATE, abs(left) / 3600
        if early > 0:
            log.warning(
                "TLS certificate %s becomes valid in %.1f h; until then, new connections fail. Set the clock of this "
                "machine, or renew the certificate",
                path,
                early / 3600,
            )
        elif left > 0:
            log.warning(
                "TLS certificate %s expires in %.1f h; after that, new connections fail. Renew the certificate", path, hours
            )
        else:
            log.warning("TLS certificate %s expired %.1f h ago, so new connections fail. Renew the certificate", path, hours)


def read_tls(folder: Path, job: str) -> Tls:
    """Load the certificates of a folder; raises `ConfigError` for invalid files."""
    made = Tls(folder, peer_name(job))
    names = names_in(_own(made.folder))
    if made.name not in names:
        raise ConfigError(
            f"--tls {folder}: {CERTIFICATE} is for the DNS names {', '.join(sorted(names)) or '(none)'}; expected the DNS name "
            f"{made.name}"
        )
    made.warn(time.time())
    return made


def job_tls(folder: Path | None, plan: Plan) -> Tls | None:
    """Load and watch the certificates of a process of a supervised job; raises `ConfigError`.

    A plan with TLS never runs without TLS.
    """
    if plan.tls != OFF and folder is None:
        raise ConfigError("--tls: is missing; the job requires TLS, so pass the folder with the certificates")
    return None if folder is None else watched_tls(folder, plan.name)


def watched_tls(folder: Path, job: str) -> Tls:
    """Load and watch the certificates of a folder; raises `ConfigError` for invalid files."""
    made = read_tls(folder, job)
    made.watch()
    return made


def names_in(certificate: Mapping[str, Any] | None) -> frozenset[str]:
    """Return the DNS names of a certificate, as `ssl` describes it."""
    return frozenset(value for kind, value in (certificate or {}).get("subjectAltName", ()) if kind == "DNS")


def is_of_job(certificate: Mapping[str, Any] | None, tls: Tls) -> bool:
    """Return whether a peer's certificate, whose signature `ssl` has verified, is one of this job."""
    return tls.name in names_in(certificate)


def explain(error: BaseException) -> str:
    """Return why a handshake failed, in a few words."""
    found: BaseException | None = error
    # aiohttp's errors hold that of `ssl`, and some are of its class themselves.
    while found is not None and (type(found) not in _OF_SSL):
        found = getattr(found, "certificate_error", None) or getattr(found, "os_error", None) or found.__cause__
    if isinstance(found, ssl.SSLCertVerificationError):
        return f"the certificate of the peer is not valid: {found.verify_message or found.reason}"
    if isinstance(found, ssl.SSLError):
        return _REASONS.get(str(found.reason), str(found.reason or found))
    return str(error) or type(error).__name__


def _own(folder: Path) -> Mapping[str, Any]:
    """Return our own certificate, as `ssl` describes it."""
    decode: Callable[[str], Mapping[str, Any]] = ssl._ssl._test_decode_cert  # type: ignore[attr-defined]  # noqa: SLF001
    try:
        return decode(str(folder / CERTIFICATE))
    except (ssl.SSLError, OSError, ValueError) as error:
        raise ConfigError(f"--tls {folder}: {CERTIFICATE} is not a valid certificate: {error}") from error


def _read(folder: Path) -> tuple[bytes, ...]:
    texts = []
    for name in PEER_FILES:
        try:
            texts.append((folder / name).read_bytes())
        except OSError as error:
            raise ConfigError(f"--tls {folder}: {name} cannot be read: {error.strerror}") from error
    return tuple(texts)


def _load_settled(folder: Path) -> _Loaded:
    """Load the files; while a renewal writes them, try again. Raises `ConfigError` if they stay invalid."""
    until = time.monotonic() + _WRITTEN
    while True:
        try:
            return _load(folder)
        except ConfigError:
            if time.monotonic() > until or time.time() - _changed(folder) > _WRITTEN:
                raise
        time.sleep(_PAUSE)


def _changed(folder: Path) -> float:
    """Return when the youngest of the files was changed, in seconds since the epoch; 0 if there are none."""
    found = 0.0
    for name in PEER_FILES:
        with contextlib.suppress(OSError):
            found = max(found, (folder / name).stat().st_mtime)
    return found


def _load(folder: Path) -> _Loaded:
    pem = _read(folder)
    server, open_server, client = (_context(folder, side) for side in ("server", "open", "client"))
    own = _own(folder)
    begins, ends = (float(ssl.cert_time_to_seconds(str(own[name]))) for name in ("notBefore", "notAfter"))
    return _Loaded(pem=pem, server=server, open_server=open_server, client=client, begins=begins, ends=ends)


@contextlib.contextmanager
def _chain_file(folder: Path) -> Iterator[Path]:
    """Yield a file with the certificates to send: ours and the authority's, if there is one of each.

    OpenSSL sends both in any case. If the file has only ours, OpenSSL builds and verifies our own chain in each handshake.
    """
    path = folder / CERTIFICATE
    own, authority = path.read_bytes().strip(), (folder / AUTHORITY).read_bytes().strip()
    with contextlib.ExitStack() as stack:
        if own.count(_BEGIN) == authority.count(_BEGIN) == 1 and own != authority:
            # Without a writable folder for temporary files, handshakes only take longer.
            with contextlib.suppress(OSError):
                made = stack.enter_context(tempfile.TemporaryDirectory(prefix="rallypoint-tls-"))
                both = Path(made) / CERTIFICATE
                both.write_bytes(own + b"\n" + authority + b"\n")
                path = both
        yield path


def _context(folder: Path, side: str) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT if side == "client" else ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    if side != "client":
        made.num_tickets = 0  # no session is resumed: each connection proves who it is
    try:
        made.load_verify_locations(folder / AUTHORITY)
        with _chain_file(folder) as chain:
            made.load_cert_chain(chain, folder / KEY)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(f"--tls {folder}: {AUTHORITY}, {CERTIFICATE} and {KEY} cannot be loaded together: {error}") from error
    made.verify_mode = ssl.CERT_OPTIONAL if side == "open" else ssl.CERT_REQUIRED
    return made
