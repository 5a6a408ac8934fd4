"""The server of the API process: it guards its connections, and ends open streams at its stop."""

import logging
import os
import signal
import socket
import sys
from typing import Any

import uvicorn
from fastapi import FastAPI

from overnight_server.api.connections import ConnectionLimits, Connections, protocol_class
from overnight_server.api.http.log_throttle import LogThrottle
from overnight_server.api.main import create_app
from overnight_server.fault_points import arm
from overnight_server.settings import Settings
from overnight_server.telemetry import LogEvent, configure, emit

GRACE_SECONDS = 5
TICKS_PER_SECOND = 10
SWITCH_SECONDS = 0.0005
LIBRARY_LOGGERS = ("uvicorn.error", "asyncio")


class ApiServer(uvicorn.Server):
    """A server that ends event streams and long polls when it is requested to stop.

    uvicorn waits for open responses, and a stream would stay open until its client leaves. It
    closes no connection on which a request does not arrive; `Connections` does.
    """

    def __init__(self, api: FastAPI, settings: Settings, **options: Any) -> None:  # noqa: ANN401 - uvicorn's options
        self._throttle: LogThrottle = api.state.dependencies.log_throttle
        self._connections = Connections(ConnectionLimits.of(settings), self._report_closed)
        super().__init__(
            uvicorn.Config(
                api,
                http=protocol_class(self._connections),
                # There are no web sockets; a connection that becomes one would not be counted.
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                **options,
            )
        )
        self._api = api

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen."""
        # Anybody can make uvicorn write a warning: with bytes that are no request.
        for name in LIBRARY_LOGGERS:
            logging.getLogger(name).addFilter(self._throttle.filter)
        await super().startup(sockets)

    async def on_tick(self, counter: int) -> bool:
        """Close overdue connections once a second; return whether to stop."""
        if counter % TICKS_PER_SECOND == 0:
            self._connections.close_overdue()
            self._throttle.report()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams and long polls, then stop."""
        self._api.state.dependencies.feed.close()
        self._api.state.dependencies.log_feed.close()
        self._api.state.dependencies.agent_long_poll.close()
        await super().shutdown(sockets)
        for name in LIBRARY_LOGGERS:
            logging.getLogger(name).removeFilter(self._throttle.filter)

    def _report_closed(self, reason: str) -> None:
        self._throttle.emit(LogEvent.CONNECTION_CLOSED, reason=reason)


def serve(settings: Settings, listener: socket.socket) -> None:
    """Serve the API on a listening socket until SIGTERM, which is no failure, or SIGINT."""
    configure(settings.log_format, settings.log_level, "api")
    arm(settings.fault)
    # A thread that computes lets others continue after this time, not after five milliseconds: a
    # request needs about ten such turns, and would be several times as slow beside a forecast.
    sys.setswitchinterval(SWITCH_SECONDS)
    address = f"http://{settings.api_host}:{listener.getsockname()[1]}"
    api = create_app(settings)
    server = ApiServer(api, settings, timeout_graceful_shutdown=GRACE_SECONDS)
    # uvicorn raises the signal again after its shutdown; a SIGTERM is not a failure.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    emit(LogEvent.SERVICE_STARTED, role="api", pid=os.getpid(), address=address)
    try:
        server.run(sockets=[listener])
    finally:
        emit(LogEvent.SERVICE_STOPPED, role="api", pid=os.getpid())
