"""The server of the API process: it ends open streams before it stops."""

import socket

import uvicorn
from fastapi import FastAPI


class ApiServer(uvicorn.Server):
    """A server that ends event streams and long polls when it is told to stop.

    uvicorn waits for open responses, and a stream would stay open until its client leaves.
    """

    def __init__(self, api: FastAPI, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._api = api

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams and long polls, then stop."""
        self._api.state.dependencies.feed.close()
        self._api.state.dependencies.agent_long_poll.close()
        await super().shutdown(sockets)
