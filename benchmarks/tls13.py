"""As much of TLS 1.3 as a simulated agent needs: a client's handshake with a certificate, and the records after it.

The other side is a real server that demands a certificate of the job, and it does the same as for a real agent. This client
offers what OpenSSL chooses here (X25519, TLS_AES_256_GCM_SHA384, ECDSA with P-256), signs the handshake with the job's key, and
checks the server's `Finished`. It does not check the server's certificate.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from rallypoint.wire.tls import AUTHORITY, CERTIFICATE, KEY, peer_name

__all__ = ["Identity", "TlsClient"]

_HASH, _SIZE = "sha384", 48
_CHANGE, _ALERT, _HANDSHAKE, _DATA = 20, 21, 22, 23
_HELLO, _SERVER_HELLO, _CERTIFICATE, _REQUEST, _VERIFY, _FINISHED = 1, 2, 11, 13, 15, 20
_KEY_SHARE, _X25519, _ECDSA = 51, 0x001D, 0x0403
_COMPATIBLE = b"\x14\x03\x03\x00\x01\x01"
_SIGNED = b" " * 64 + b"TLS 1.3, client CertificateVerify\x00"


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Who all agents of a job are: the name that a server must have, their certificates (DER), and the key of the first."""

    name: str
    chain: tuple[bytes, ...]
    key: ec.EllipticCurvePrivateKey
    alpn: str = ""

    @classmethod
    def read(cls, folder: Path, job: str, *, grpc: bool) -> Identity:
        """Return that of the files in a folder. An agent's OpenSSL sends the authority as well, that of grpcio does not."""
        key = load_pem_private_key((folder / KEY).read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        names = (CERTIFICATE,) if grpc else (CERTIFICATE, AUTHORITY)
        chain = tuple(x509.load_pem_x509_certificate((folder / name).read_bytes()).public_bytes(Encoding.DER) for name in names)
        return cls(name=peer_name(job), chain=chain, key=key, alpn="h2" if grpc else "")


class _Cipher:
    """One direction of a connection."""

    def __init__(self, secret: bytes) -> None:
        self._aead = AESGCM(_expanded(secret, b"key", b"", 32))
        self._iv = int.from_bytes(_expanded(secret, b"iv", b"", 12), "big")
        self._number = 0

    def _nonce(self) -> bytes:
        nonce = (self._iv ^ self._number).to_bytes(12, "big")
        self._number += 1
        return nonce

    def sealed(self, kind: int, content: bytes) -> bytes:
        """Return a record."""
        head = struct.pack(">BHH", _DATA, 0x0303, len(content) + 17)
        return head + self._aead.encrypt(self._nonce(), content + bytes([kind]), head)

    def opened(self, head: bytes, body: bytes) -> tuple[int, bytes]:
        """Return the type and the content of a TLS record without padding."""
        content = self._aead.decrypt(self._nonce(), body, head)
        return content[-1], content[:-1]


class TlsClient(asyncio.Protocol):
    """A connection that begins with a handshake; from then on it is that of `inner`, whose transport is this."""

    def __init__(self, inner: asyncio.Protocol, identity: Identity) -> None:
        self.inner, self._identity = inner, identity
        self._private = X25519PrivateKey.generate()
        self._transport: asyncio.Transport | None = None
        self._read, self._messages = b"", b""
        self._said = hashlib.new(_HASH)
        self._receives: _Cipher | None = None
        self._sends: _Cipher | None = None
        self._secrets = b"", b"", b""
        self._shaken = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(_record(_HANDSHAKE, self._note(_hello(self._identity, self._private))))

    def connection_lost(self, exc: Exception | None) -> None:
        """Hand it on."""
        self.inner.connection_lost(exc)

    def write(self, data: bytes) -> None:
        """Send what `inner` has to say."""
        assert self._transport is not None
        assert self._sends is not None
        self._transport.write(self._sends.sealed(_DATA, data))

    def data_received(self, data: bytes) -> None:
        """Read records."""
        self._read += data
        while len(self._read) >= 5 and len(self._read) >= (size := 5 + int.from_bytes(self._read[3:5], "big")):
            head, body, self._read = self._read[:5], self._read[5:size], self._read[size:]
            self._record(head, body)

    def _record(self, head: bytes, body: bytes) -> None:
        kind = head[0]
        if kind == _DATA and self._receives is not None:
            kind, body = self._receives.opened(head, body)
        if kind == _DATA:
            self.inner.data_received(body)
        elif kind == _ALERT:
            raise SystemExit(f"an agent's handshake was refused: alert {body[1]}")
        elif kind == _HANDSHAKE and not self._shaken:  # what comes later are session tickets
            self._messages += body
            for message in self._complete():
                self._handshake(message)

    def _complete(self) -> Iterator[bytes]:
        while len(self._messages) >= 4 and len(self._messages) >= (size := 4 + int.from_bytes(self._messages[1:4], "big")):
            message, self._messages = self._messages[:size], self._messages[size:]
            yield message

    def _note(self, message: bytes) -> bytes:
        self._said.update(message)
        return message

    def _handshake(self, message: bytes) -> None:
        if message[0] == _SERVER_HELLO:
            self._note(message)
            self._agree(self._private.exchange(X25519PublicKey.from_public_bytes(_share(message))))
        elif message[0] == _FINISHED:
            self._finish(message)
        else:
            self._note(message)

    def _agree(self, shared: bytes) -> None:
        handshake = hmac.digest(_DERIVED, shared, _HASH)
        said = self._said.digest()
        ours, theirs = (_expanded(handshake, b"%c hs traffic" % side, said) for side in b"cs")
        main = hmac.digest(_expanded(handshake, b"derived", _EMPTY), bytes(_SIZE), _HASH)
        self._secrets = ours, theirs, main
        self._receives = _Cipher(theirs)

    def _finish(self, message: bytes) -> None:
        """Prove who we are, and hand the connection over."""
        ours, theirs, main = self._secrets
        if not hmac.compare_digest(message[4:], _finished(theirs, self._said.digest())):
            raise SystemExit("the server's Finished is wrong")
        self._note(message)
        said = self._said.digest()
        self._receives = _Cipher(_expanded(main, b"s ap traffic", said))
        assert self._transport is not None
        self._transport.write(_COMPATIBLE + _Cipher(ours).sealed(_HANDSHAKE, self._proof(ours)))
        self._sends, self._shaken = _Cipher(_expanded(main, b"c ap traffic", said)), True
        self.inner.connection_made(cast("asyncio.BaseTransport", self))

    def _proof(self, secret: bytes) -> bytes:
        identity, certificates = self._identity, b""
        for one in identity.chain:
            certificates += _sized(one, 3) + b"\x00\x00"
        told = self._note(_message(_CERTIFICATE, b"\x00" + _sized(certificates, 3)))
        signature = identity.key.sign(_SIGNED + self._said.digest(), ec.ECDSA(hashes.SHA256()))
        told += self._note(_message(_VERIFY, struct.pack(">H", _ECDSA) + _sized(signature, 2)))
        return told + self._note(_message(_FINISHED, _finished(secret, self._said.digest())))


def _expanded(secret: bytes, label: bytes, context: bytes, length: int = _SIZE) -> bytes:
    info = struct.pack(">H", length) + _sized(b"tls13 " + label, 1) + _sized(context, 1)
    return hmac.digest(secret, info + b"\x01", _HASH)[:length]


def _finished(secret: bytes, said: bytes) -> bytes:
    return hmac.digest(_expanded(secret, b"finished", b""), said, _HASH)


def _hello(identity: Identity, private: X25519PrivateKey) -> bytes:
    share = private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    extensions: Sequence[tuple[int, bytes]] = (
        (0, _sized(b"\x00" + _sized(identity.name.encode(), 2), 2)),
        (10, _sized(struct.pack(">H", _X25519), 2)),
        (13, _sized(struct.pack(">H", _ECDSA), 2)),
        (43, b"\x02\x03\x04"),
        (_KEY_SHARE, _sized(struct.pack(">H", _X25519) + _sized(share, 2), 2)),
        *(((16, _sized(_sized(identity.alpn.encode(), 1), 2)),) if identity.alpn else ()),
    )
    packed = b"".join(struct.pack(">H", kind) + _sized(body, 2) for kind, body in extensions)
    return _message(
        _HELLO, b"\x03\x03" + os.urandom(32) + _sized(os.urandom(32), 1) + b"\x00\x02\x13\x02\x01\x00" + _sized(packed, 2)
    )


def _share(hello: bytes) -> bytes:
    """Return the server's public key."""
    at = 4 + 2 + 32
    at += 1 + hello[at] + 3 + 2
    while at < len(hello):
        kind, size = struct.unpack_from(">HH", hello, at)
        if kind == _KEY_SHARE and size == 36:
            return hello[at + 8 : at + 40]
        at += 4 + size
    raise SystemExit("the server did not choose X25519")


def _message(kind: int, body: bytes) -> bytes:
    return bytes([kind]) + _sized(body, 3)


def _record(kind: int, body: bytes) -> bytes:
    return struct.pack(">BH", kind, 0x0301) + _sized(body, 2)


def _sized(body: bytes, width: int) -> bytes:
    return len(body).to_bytes(width, "big") + body


_EMPTY = hashlib.new(_HASH).digest()
_DERIVED = _expanded(hmac.digest(bytes(_SIZE), bytes(_SIZE), _HASH), b"derived", _EMPTY)
