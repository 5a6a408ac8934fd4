"""A server of git repositories over https, as hosts of repositories run it: `git http-backend`."""

import os
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@contextmanager
def serve_repositories(root: Path, place: Path) -> Iterator[int]:
    """Serve the repositories below `root` until the end of the block; yield the port.

    The certificate, made in `place`, is the server's own: no client trusts it.
    """
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(root))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(_make_certificate(place))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _make_certificate(place: Path) -> Path:
    """Make a key and a certificate; return the file that has both."""
    key, certificate = place / "key.pem", place / "certificate.pem"
    words = ("-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=git.example")
    files = ("-keyout", str(key), "-out", str(certificate))
    subprocess.run(["openssl", "req", "-x509", *words, *files], check=True, capture_output=True)
    both = place / "both.pem"
    both.write_text(key.read_text() + certificate.read_text())
    return both


def _handler(root: Path) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Passes each request to the program that git has for it."""

        def do_GET(self) -> None:
            self._answer(b"")

        def do_POST(self) -> None:
            self._answer(self.rfile.read(int(self.headers["Content-Length"])))

        def _answer(self, body: bytes) -> None:
            path, _, query = self.path.partition("?")
            done = subprocess.run(
                ["git", "http-backend"],
                input=body,
                capture_output=True,
                check=True,
                env={
                    "PATH": os.environ["PATH"],
                    "GIT_PROJECT_ROOT": str(root),
                    "GIT_HTTP_EXPORT_ALL": "1",
                    "GIT_CONFIG_COUNT": "1",
                    "GIT_CONFIG_KEY_0": "safe.directory",
                    "GIT_CONFIG_VALUE_0": "*",
                    "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
                    "REQUEST_METHOD": self.command,
                    "PATH_INFO": path,
                    "QUERY_STRING": query,
                    "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                    "CONTENT_LENGTH": str(len(body)),
                    "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                },
            )
            head, _, content = done.stdout.partition(b"\r\n\r\n")
            fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
            self.send_response(int(fields.pop("Status", "200").split()[0]))
            for name, value in {**fields, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    return Handler
