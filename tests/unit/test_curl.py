"""The replacement for curl sends the same requests and supports every tutorial command."""

import re
import shlex
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.rules.sources import ROOT
from tests.support import curl
from tests.support.pages import typed

Seen = tuple[str, str, str | None, str | None, bytes]


class Recorder(BaseHTTPRequestHandler):
    """Records every request and responds to each in the same way."""

    seen: list[Seen]

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        told = self.headers
        self.seen.append((self.command, self.path, told["Content-Type"], told["X-API-Key"], body))
        self.send_response(201)
        self.send_header("Content-Length", "7")
        self.end_headers()
        self.wfile.write(b'{"a":1}')

    do_GET = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815 - http.server's names

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[tuple[str, list[Seen]]]:
    seen: list[Seen] = []
    handler = type("Remembering", (Recorder,), {"seen": seen})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}", seen
        httpd.shutdown()
        thread.join()


CASES: list[tuple[list[str], Seen]] = [
    (["-s", "{url}/health"], ("GET", "/health", None, None, b"")),
    (["-s", "-H", "X-API-Key: k", "{url}/a?b=c&d"], ("GET", "/a?b=c&d", None, "k", b"")),
    (["-sN", "-X", "POST", "{url}/a/cancel"], ("POST", "/a/cancel", None, None, b"")),
    (["-s", "{url}/a", "-d", '{"é":\n 1}'], ("POST", "/a", curl.FORM, None, '{"é":\n 1}'.encode())),
    (
        ["-s", "-H", "Content-Type: application/json", "-X", "PUT", "{url}/a", "-d", "{}"],
        ("PUT", "/a", "application/json", None, b"{}"),
    ),
]


@pytest.mark.parametrize(("arguments", "expected"), CASES)
def test_the_parser_sends_the_request_of_curl(
    server: tuple[str, list[Seen]], tmp_path: Path, arguments: list[str], expected: Seen
) -> None:
    url, seen = server
    given = [argument.replace("{url}", url) for argument in arguments]
    real = shutil.which("curl")

    for program in filter(None, (str(curl.installed(tmp_path / "bin") / "curl"), real)):
        ran = subprocess.run([program, *given], capture_output=True, check=True, timeout=60)
        assert ran.stdout == b'{"a":1}'

    assert seen == [expected] * (1 if real is None else 2)


def test_the_parser_stores_the_response_and_its_status(
    server: tuple[str, list[Seen]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, _ = server

    assert curl.main(["-s", "-o", str(tmp_path / "kept"), "-w", r"%{http_code}\n", url]) == 0

    assert capsys.readouterr().out == "201\n"
    assert (tmp_path / "kept").read_text() == '{"a":1}'


def test_the_parser_understands_every_command_of_the_tutorial() -> None:
    page = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
    commands = [
        command
        for step in typed(page)
        if step.block.language == "sh"
        for command in re.findall(
            r"curl ((?:'[^']*'|\"(?:\\.|[^\"])*\"|\\\n|[^\n|;'\"])*)", step.block.text
        )
    ]

    for command in commands:
        curl.parser().parse_args(shlex.split(command.replace("\\\n", " ")))

    assert len(commands) > 40
