"""The server of the API process: it ends open streams before it stops."""

import os
import signal
import socket
import sys

import uvicorn
from fastapi import FastAPI

from overnight_server.api.main import create_app
from overnight_server.fault_points import arm
from overnight_server.settings import Settings
from overnight_server.telemetry import LogEvent, configure, emit

GRACE_SECONDS = 5


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


def serve(settings: Settings, listener: socket.socket) -> None:
    """Serve the API on a listening socket until SIGTERM, which is no failure, or SIGINT."""
    configure(settings.log_format, settings.log_level, "api")
    arm(settings.fault)
    address = f"http://{settings.api_host}:{listener.getsockname()[1]}"
    api = create_app(settings)
    server = ApiServer(
        api,
        uvicorn.Config(
            api,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE_SECONDS,
        ),
    )
    # uvicorn raises the signal again after its shutdown; a SIGTERM is not a failure.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    emit(LogEvent.SERVICE_STARTED, role="api", pid=os.getpid(), address=address)
    try:
        server.run(sockets=[listener])
    finally:
        emit(LogEvent.SERVICE_STOPPED, role="api", pid=os.getpid())
