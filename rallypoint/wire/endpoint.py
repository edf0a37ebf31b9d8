"""Where a coordinator listens, as it is written down for those who look for it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Endpoint"]


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
