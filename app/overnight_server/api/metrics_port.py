"""Serves `/metrics` on a port of its own, without a key, if the settings name one.

The API processes of one machine share the port: whichever answers, it reads the same database.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from overnight_server.api.http.dependencies import Dependencies
from overnight_server.api.http.exposition import MEDIA_TYPE, expose
from overnight_server.store.db import DATABASE_ERRORS

PATH = "/metrics"
# A client that sends no request occupies a thread for so long.
TIMEOUT_SECONDS = 10.0


@contextmanager
def serve_metrics(deps: Dependencies) -> Iterator[None]:
    """Serve the metrics on the port of the settings, if there is one, until the context ends."""
    if deps.settings.metrics_port is None:
        yield
        return
    address = (deps.settings.metrics_host, deps.settings.metrics_port)
    server = _SharedPort(address, _handler(lambda: expose(deps.db, deps.settings)))
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _SharedPort(ThreadingHTTPServer):
    """A server whose port several processes have."""

    allow_reuse_port = True
    daemon_threads = True


def _handler(scrape: Callable[[], bytes]) -> type[BaseHTTPRequestHandler]:
    class MetricsHandler(BaseHTTPRequestHandler):
        """Answers GET /metrics; everything else is not found."""

        timeout = TIMEOUT_SECONDS

        def do_GET(self) -> None:
            if self.path.partition("?")[0] != PATH:
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            try:
                body = scrape()
            except DATABASE_ERRORS:
                self.send_error(HTTPStatus.SERVICE_UNAVAILABLE)
                return
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", MEDIA_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Write no line for each scrape."""

    return MetricsHandler
