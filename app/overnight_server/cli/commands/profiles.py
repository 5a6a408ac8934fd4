"""`overnight profile`: name the servers one speaks to often."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from overnight_server.cli.terminal import options, output
from overnight_server.cli.terminal.failures import Code, Failure

if TYPE_CHECKING:
    from overnight.client.profiles import Profile

app = typer.Typer(help="Name the servers you speak to.")


@app.command("list")
def list_(*, as_json: options.Json = False) -> None:
    """List the profiles."""
    from overnight.client.profiles import path

    known, default = _read()
    rows = [
        {
            "name": one.name,
            "default": one.name == default,
            "url": one.url,
            "api_key_file": None if one.api_key_file is None else str(one.api_key_file),
        }
        for one in known.values()
    ]
    if as_json:
        output.document(rows)
    else:
        headers = ("NAME", "DEFAULT", "URL", "KEY FILE")
        empty = f"No profiles in {path()}."
        output.table(headers, [tuple(row.values()) for row in rows], empty=empty)


@app.command()
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is called.")],
    *,
    url: Annotated[str, typer.Option(help="Where the server answers.")],
    api_key_file: Annotated[
        Path | None, typer.Option(help="A file that holds its API key.")
    ] = None,
    default: Annotated[
        bool, typer.Option("--default", help="Use it where nothing else is said.")
    ] = False,
) -> None:
    """Add a profile, or change one."""
    from overnight.client.profiles import DEFAULT, Profile, path

    if name == DEFAULT or not name.isidentifier():
        raise Failure(f"{name!r} cannot name a profile; use a word such as work", code=Code.USAGE)
    known, before = _read()
    known[name] = Profile(name, _address(url), api_key_file and _key_file(api_key_file))
    _write(known, name if default else before)
    output.line(f"profile {name} in {path()}")


@app.command()
def remove(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The profile to forget.")],
) -> None:
    """Forget a profile; its key file stays. If it was the default, there is none then."""
    known, default = _read()
    _refuse_unknown(name, known)
    del known[name]
    _write(known, None if name == default else default)
    output.line(f"profile {name} removed")


@app.command("default")
def default_(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The profile to use from now on.")
    ] = None,
    *,
    unset: Annotated[bool, typer.Option("--unset", help="Use none where nothing is said.")] = False,
) -> None:
    """Say which profile is used where nothing else is said, or show it."""
    known, before = _read()
    if name is not None and unset:
        raise Failure("NAME and --unset exclude each other", code=Code.USAGE)
    if name is not None:
        _refuse_unknown(name, known)
    after = name or (None if unset else before)
    if after != before:
        _write(known, after)
    if after is None:
        output.note("No profile is the default.")
    else:
        output.line(after)


def _refuse_unknown(name: str, known: "dict[str, Profile]") -> None:
    if name not in known:
        there = f"Known are {', '.join(sorted(known))}." if known else "There are none."
        raise Failure(f"there is no profile {name!r}", hint=there, code=Code.USAGE)


def _address(url: str) -> str:
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        is_address = False
    if not is_address:
        hint = "Write http:// or https:// and a host, such as https://overnight.example."
        raise Failure(f"--url: {url!r} is no address", hint=hint, code=Code.USAGE)
    return url


def _key_file(given: Path) -> Path:
    """Return the file by a path that means the same from everywhere; one without a key is none."""
    from overnight.client.discovery import read_key
    from overnight.errors import NotConfigured

    file = given.expanduser().absolute()
    try:
        read_key(file)
    except NotConfigured as error:
        hint = "Name a file that holds an API key and nothing else."
        raise Failure(f"--api-key-file: {error}", hint=hint, code=Code.USAGE) from error
    return file


def _read() -> "tuple[dict[str, Profile], str | None]":
    from overnight.client.profiles import read
    from overnight.errors import NotConfigured

    try:
        return read()
    except NotConfigured as error:
        raise Failure(str(error), code=Code.USAGE) from error


def _write(known: "dict[str, Profile]", default: str | None) -> None:
    from overnight.client.profiles import DEFAULT, path

    # A basic string of TOML is written as one of JSON.
    lines = [] if default is None else [f"{DEFAULT} = {json.dumps(default)}"]
    for one in known.values():
        lines += ["", f"[{one.name}]", f"url = {json.dumps(one.url)}"]
        if one.api_key_file is not None:
            lines.append(f"api_key_file = {json.dumps(str(one.api_key_file))}")
    path().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path().write_text("\n".join(lines).lstrip() + "\n", encoding="utf-8")
