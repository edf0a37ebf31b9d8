"""Requests to the dashboard of a Ray cluster, against a small server in its place."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from rallypoint.backends.contract import BackendError
from rallypoint.backends.ray.access import Access
from rallypoint.backends.ray.dashboard import Cluster
from rallypoint.provider.connections.connection import ConnectionFieldError, read_settings

Serve = Callable[..., Awaitable[str]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Give a function that serves handlers by method and path, with TLS if a context is given; returns the URL."""
    runners: list[web.AppRunner] = []

    async def begin(handlers: dict[tuple[str, str], Any], tls: ssl.SSLContext | None = None) -> str:
        application = web.Application()
        for (method, path), handler in handlers.items():
            application.router.add_route(method, path, handler)
        runner = web.AppRunner(application)
        runners.append(runner)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        return f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"

    yield begin
    for runner in runners:
        await runner.cleanup()


async def version(_: web.Request) -> web.Response:
    return web.json_response({"ray_version": "2.60.0"})


def own(folder: Path) -> tuple[str, ssl.SSLContext]:
    """Return a certificate of 127.0.0.1 that nobody else has signed, and what its server needs."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "head")])
    now = dt.datetime.now(dt.timezone.utc)
    built = x509.CertificateBuilder(issuer_name=name, subject_name=name, public_key=key.public_key())
    built = built.serial_number(x509.random_serial_number()).not_valid_before(now).not_valid_after(now + dt.timedelta(days=1))
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    built = built.add_extension(address, critical=False).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    text = built.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    (folder / "tls.crt").write_bytes(text)
    (folder / "tls.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return text.decode(), context


async def test_a_dashboard_is_verified_with_the_own_authority(serve: Serve, tmp_path: Path) -> None:
    """Without it, or with another one, the connection is refused, and nothing is sent."""
    ca_cert, context = own(tmp_path)
    other, _ = own(tmp_path)
    url = await serve({("GET", "/api/version"): version}, context)

    with pytest.raises(BackendError, match="certificate verify failed"):
        await asked(Access(address=url))
    with pytest.raises(BackendError, match="certificate verify failed"):
        await asked(Access(address=url, ca_cert=other))
    assert (await asked(Access(address=url, ca_cert=ca_cert)))["ray_version"] == "2.60.0"
    assert (await asked(Access(address=url, verify_ssl=False)))["ray_version"] == "2.60.0"


async def asked(access: Access) -> dict[str, Any]:
    cluster = Cluster(access)
    try:
        return await cluster.version()
    finally:
        await cluster.close()


@pytest.mark.parametrize("text", ["no certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_certificates_that_are_none_are_an_error(text: str) -> None:
    """Before anything is sent, and without the text."""
    with pytest.raises(BackendError, match="ca_cert: the value is not allowed; expected certificates") as raised:
        Access(address="https://head:8265", ca_cert=text)
    assert text not in str(raised.value)


async def test_a_head_whose_nodes_have_just_started_is_asked_again(serve: Serve) -> None:
    """Ray refuses a submission until an agent of a node has joined; another refusal is an error at once."""
    asked: list[str] = []

    async def submit(request: web.Request) -> web.Response:
        asked.append((await request.json())["submission_id"])
        if len(asked) == 1:
            return web.Response(status=500, text="No available agent to submit job, please try again later.")
        if len(asked) == 2:
            return web.json_response({"submission_id": "a1"})
        return web.Response(status=500, text="out of disk")

    async def unknown(_: web.Request) -> web.Response:
        return web.Response(status=404, text="not found")

    url = await serve({("POST", "/api/jobs/"): submit, ("GET", "/api/jobs/{uid}"): unknown})
    cluster = Cluster(Access(address=url))
    try:
        await cluster.submit("a1")
        assert asked == ["a1", "a1"]
        with pytest.raises(BackendError, match="out of disk"):
            await cluster.submit("a2")
    finally:
        await cluster.close()


def test_the_authority_of_a_connection(tmp_path: Path) -> None:
    """It is read from the extra; a text that is no certificate is an error that does not show it."""
    ca_cert, _ = own(tmp_path)
    extra = {"platform": "ray", "address": "https://head:8265", "ca_cert": ca_cert}

    assert read_settings("ray", own={}, extra=extra).ca_cert == ca_cert
    with pytest.raises(ConnectionFieldError, match="ca_cert: the value is not allowed; expected certificates") as raised:
        read_settings("ray", own={}, extra={**extra, "ca_cert": "secret words"})
    assert "secret words" not in str(raised.value)
