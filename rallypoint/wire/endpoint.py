"""Addresses as they are written down: of a coordinator for those who look for it, and `host:port` taken apart."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Endpoint", "split_address"]


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Address of the coordinator of `attempt` and `term`; of two endpoints the higher (attempt, term) is right.

    `port` is that of HTTP, `grpc` that of gRPC; 0 where it does not speak that.
    """

    attempt: int
    term: int
    host: str
    port: int
    grpc: int = 0

    @property
    def address(self) -> str:
        """`host:port`; an IPv6 host is put in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of `host:port`; the brackets of an IPv6 host are taken off. Raises `ValueError`."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)
