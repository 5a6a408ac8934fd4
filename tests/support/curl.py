"""A stand-in for curl on machines without it: the few options that our pages use, and no others.

Run as a program it sends one real request. What it does not know it refuses, so that no page can
be followed with it that curl would understand otherwise.
"""

import argparse
import stat
import sys
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from urllib.parse import urlsplit

from tests.rules.sources import ROOT

FORM = "application/x-www-form-urlencoded"


def parser() -> argparse.ArgumentParser:
    """Return what is understood."""
    options = argparse.ArgumentParser(prog="curl", allow_abbrev=False)
    options.add_argument("url")
    options.add_argument("-s", action="store_true", help="silent, which it always is")
    options.add_argument("-N", action="store_true", help="unbuffered, which it always is")
    options.add_argument("-X", dest="method")
    options.add_argument("-H", dest="headers", action="append", default=[])
    options.add_argument("-d", dest="data")
    options.add_argument("-o", dest="output")
    options.add_argument("-w", dest="told", choices=[r"%{http_code}\n"])
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Send one request, and print or keep what is answered."""
    asked = parser().parse_args(arguments)
    place = urlsplit(asked.url)
    headers = dict(header.split(": ", 1) for header in asked.headers)
    if asked.data is not None:
        headers.setdefault("Content-Type", FORM)
    connection = HTTPConnection(place.netloc, timeout=120)
    path = place.path + (f"?{place.query}" if place.query else "")
    method = asked.method or ("GET" if asked.data is None else "POST")
    # curl leaves line ends out only of what it reads from files.
    body = None if asked.data is None else asked.data.encode()
    connection.request(method, path or "/", body=body, headers=headers)
    answer = connection.getresponse()
    _keep(answer, asked.output)
    if asked.told:
        sys.stdout.write(f"{answer.status}\n")
    connection.close()
    return 0


def _keep(answer: HTTPResponse, output: str | None) -> None:
    """Write an answer where it belongs, as it comes."""
    if output is not None:
        Path(output).write_bytes(answer.read())
        return
    while part := answer.read1(65_536):
        sys.stdout.buffer.write(part)
        sys.stdout.buffer.flush()


def installed(place: Path) -> Path:
    """Make a program called curl in a directory, which is returned."""
    place.mkdir()
    program = place / "curl"
    program.write_text(
        f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m tests.support.curl "$@"\n',
        encoding="utf-8",
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return place


if __name__ == "__main__":
    sys.exit(main())
