"""The authority of one job and the certificates that it issues (`tls: auto`). Pure but for random numbers; takes `now`.

One certificate serves all parts of a job, as servers and as clients: they share the job's secret as well. It lives 30 days and
is replaced after 10, by whoever supervises the job; the authority lives as long as the job.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from rallypoint.backends.contract import BackendError, SubmitError
from rallypoint.wire.tls import AUTHORITY, AUTHORITY_KEY, CERTIFICATE, KEY, peer_name

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, CertificateBuilder

__all__ = ["EVERY", "LIFETIME", "RENEW_AFTER", "new_files", "renewed", "renewing", "require_cryptography", "wants_renewal"]

#: Seconds for which a certificate is valid, and after which it is replaced: a job without a supervisor has the rest.
LIFETIME, RENEW_AFTER = 30 * 86400.0, 10 * 86400.0

#: Years of an authority, which nobody replaces: longer than any job.
_AUTHORITY_YEARS = 10

#: Seconds by which clocks of machines may differ, and by which an authority is valid earlier, because it is never replaced.
_SKEW, _EARLIER = 300.0, 365 * 86400.0

_NEEDS = "needs the package cryptography: install airflow-provider-rallypoint[tls]"


def require_cryptography() -> None:
    """Raise `SubmitError` where certificates cannot be created."""
    try:
        import cryptography.x509  # noqa: F401, PLC0415  optional, and slow to import
    except ImportError as error:
        raise SubmitError(f"tls: 'auto' {_NEEDS} ({error})") from error


def new_files(job: str, now: float, *, lifetime: float = LIFETIME) -> dict[str, str]:
    """Return the files of a new authority and of the first certificate of a job, by name; raises `SubmitError`."""
    require_cryptography()
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    key = ec.generate_private_key(ec.SECP256R1())
    return _issued(job, _authority(job, key, now), key, now, lifetime)


def renewed(files: Mapping[str, str], job: str, now: float, *, lifetime: float = LIFETIME) -> dict[str, str]:
    """Return the files with a new certificate of the same authority; raises `SubmitError`, and `ValueError` for other files."""
    require_cryptography()
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415
    from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415

    key = load_pem_private_key(files[AUTHORITY_KEY].encode(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{AUTHORITY_KEY}: the private key has the wrong type; expected an elliptic-curve (EC) key")  # noqa: TRY004  a file, not an argument
    return _issued(job, x509.load_pem_x509_certificate(files[AUTHORITY].encode()), key, now, lifetime)


def wants_renewal(files: Mapping[str, str], now: float, *, after: float = RENEW_AFTER) -> bool:
    """Return whether a certificate has been in use for `after` seconds, or is not valid yet, because a clock was ahead.

    Raises `ValueError` where there is none.
    """
    require_cryptography()
    from cryptography import x509  # noqa: PLC0415

    certificate = x509.load_pem_x509_certificate(files[CERTIFICATE].encode())
    age = now - certificate.not_valid_before_utc.timestamp()
    return age < 0 or age - _SKEW >= after


def _authority(job: str, key: EllipticCurvePrivateKey, now: float) -> Certificate:
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives import hashes  # noqa: PLC0415

    name = _name(f"authority of {peer_name(job)}"[:64])
    usage = {**dict.fromkeys(_USAGES, False), "key_cert_sign": True, "crl_sign": True}
    return (
        _builder(now - _EARLIER, now + _AUTHORITY_YEARS * 365 * 86400.0)
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(**usage), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _issued(
    job: str, authority: Certificate, authority_key: EllipticCurvePrivateKey, now: float, lifetime: float
) -> dict[str, str]:
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives import hashes  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415
    from cryptography.x509.oid import ExtendedKeyUsageOID  # noqa: PLC0415

    key = ec.generate_private_key(ec.SECP256R1())
    public = authority_key.public_key()
    certificate = (
        _builder(now, now + lifetime)
        .subject_name(_name(peer_name(job)[:64]))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(peer_name(job))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(**{**dict.fromkeys(_USAGES, False), "digital_signature": True}), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    return {
        AUTHORITY: _pem(authority),
        AUTHORITY_KEY: _key_pem(authority_key),
        CERTIFICATE: _pem(certificate),
        KEY: _key_pem(key),
    }


_USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


def _builder(begins: float, ends: float) -> CertificateBuilder:
    from cryptography import x509  # noqa: PLC0415

    first, last = (dt.datetime.fromtimestamp(at, tz=dt.timezone.utc) for at in (begins - _SKEW, ends))
    return x509.CertificateBuilder().serial_number(x509.random_serial_number()).not_valid_before(first).not_valid_after(last)


def _name(text: str) -> Any:
    from cryptography import x509  # noqa: PLC0415

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _pem(certificate: Certificate) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding  # noqa: PLC0415

    return certificate.public_bytes(Encoding.PEM).decode("ascii")


def _key_pem(key: EllipticCurvePrivateKey) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat  # noqa: PLC0415

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode("ascii")


log = logging.getLogger(__name__)

#: Seconds between two looks at a job's certificate.
EVERY = 600.0


@contextlib.asynccontextmanager
async def renewing(name: str, renew: Callable[[], Awaitable[object]], *, every: float = EVERY) -> AsyncIterator[None]:
    """Call `renew`, which looks whether there is anything to renew, now and each `every` seconds while the context lasts."""
    task = asyncio.create_task(_renew_on(name, renew, every), name=f"renew certificates of {name}")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _renew_on(name: str, renew: Callable[[], Awaitable[object]], every: float) -> None:
    while True:
        try:
            await renew()
        except BackendError as error:
            log.warning("job=%s: cannot renew the TLS certificate of the job: %s; retrying in %g s", name, error, every)
        await asyncio.sleep(every)
