"""The server of the API process: one that sends its listeners home before it stops."""

import socket

import uvicorn
from fastapi import FastAPI


class Server(uvicorn.Server):
    """A server that ends event streams and waits when it is told to stop.

    They would otherwise be what it waits for: a stream ends only when somebody ends it.
    """

    def __init__(self, api: FastAPI, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._api = api

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop, listeners first."""
        self._api.state.parts.feed.close()
        self._api.state.parts.bell.close()
        await super().shutdown(sockets)
