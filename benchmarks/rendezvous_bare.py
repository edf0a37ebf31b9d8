"""A server of grpcio that knows nothing of rendezvous: what gRPC costs before anything of ours is done.

It takes one stream of each agent, as the coordinator does, and answers each message at once with the same few bytes. Prints its
port and serves until it is killed.
"""

from __future__ import annotations

import asyncio
from typing import Any

from rallypoint.agent.transport.grpc_words import address, grpcio

__all__ = ["main"]

#: As long as a place in a world is, and all that a simulated agent looks for in it.
_ANSWER = b'{"sequence": 1, "reply": {"version": 1, "kind": "assignment", "body": "%s"}}' % (b"-" * 300)

#: As the coordinator's: everybody may come at once.
_BACKLOG = 1 << 16


async def _serve() -> None:
    grpc = grpcio()

    async def echo(_: Any, context: Any) -> None:
        while (await context.read()) is not grpc.aio.EOF:
            await context.write(_ANSWER)

    class Handlers(grpc.GenericRpcHandler):  # type: ignore[misc, name-defined]
        def service(self, _: Any) -> Any:
            return handler

    handler = grpc.stream_stream_rpc_method_handler(echo)
    limits = ("grpc.server.max_pending_requests", "grpc.server.max_pending_requests_hard_limit")
    server = grpc.aio.server(handlers=(Handlers(),), options=[(name, _BACKLOG) for name in limits])
    print(server.add_insecure_port(address("127.0.0.1", 0)), flush=True)
    await server.start()
    await server.wait_for_termination()


def main() -> None:
    """Serve."""
    asyncio.run(_serve())


if __name__ == "__main__":
    main()
