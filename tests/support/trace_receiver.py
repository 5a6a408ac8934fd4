"""An OpenTelemetry receiver on a port of this machine, which keeps the spans that it reads."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class TraceReceiver:
    """What a receiver has got."""

    url: str
    spans: list[Span] = field(default_factory=list)

    def named(self, name: str) -> list[Span]:
        """Return the spans with a name, in the order of their begin."""
        found = [span for span in self.spans if span.name == name]
        return sorted(found, key=lambda span: span.start_time_unix_nano)

    def only(self, name: str) -> Span:
        """Return the only span with a name."""
        [span] = self.named(name)
        return span


@contextmanager
def trace_receiver() -> Iterator[TraceReceiver]:
    """Receive spans until the context ends."""
    receiver = TraceReceiver("")

    class TraceHandler(BaseHTTPRequestHandler):
        """Keeps what is sent to the path of traces."""

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.path == "/v1/traces"
            request = ExportTraceServiceRequest.FromString(body)
            receiver.spans += [
                span
                for resource in request.resource_spans
                for scope in resource.scope_spans
                for span in scope.spans
            ]
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), TraceHandler)
    receiver.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def attributes(span: Span) -> dict[str, object]:
    """Return the attributes of a span."""
    return {each.key: each.value.string_value or each.value.int_value for each in span.attributes}
