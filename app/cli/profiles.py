"""Profiles: servers one speaks to often, each with its address and its key, under one name.

They stand in `profiles.toml` under the user's configuration directory:

    default = "work"

    [work]
    url = "https://overnight.example"
    api_key_file = "~/.config/overnight/work.key"
"""

import json
import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from app.cli import options, output
from app.cli.failures import Code, Failure

app = typer.Typer(help="Name the servers you speak to.")
DEFAULT = "default"


@dataclass(frozen=True)
class Profile:
    """One server under a name, and the file that holds its key."""

    name: str
    url: str
    api_key_file: Path | None = None


def path() -> Path:
    """Return where the profiles stand, whether or not there are any."""
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "overnight" / "profiles.toml"


def find(name: str | None) -> Profile | None:
    """Return the profile of this name, or without a name the default one, if there is one."""
    known, default = _read()
    wanted = name or default
    if wanted is None:
        return None
    if wanted not in known:
        legal = f"Known are {', '.join(sorted(known))}." if known else "There are none."
        hint = f"{legal} They stand in {path()}."
        raise Failure(f"there is no profile {wanted!r}", hint=hint, code=Code.USAGE)
    return known[wanted]


@app.command("list")
def list_(*, as_json: options.Json = False) -> None:
    """List the profiles."""
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
    if name == DEFAULT or not name.isidentifier():
        raise Failure(f"{name!r} cannot name a profile; use a word such as work", code=Code.USAGE)
    known, before = _read()
    known[name] = Profile(name, url, api_key_file)
    _write(known, name if default else before)
    output.line(f"profile {name} in {path()}")


def _read() -> tuple[dict[str, Profile], str | None]:
    """Return every profile, and the name of the default one."""
    try:
        told = tomllib.loads(path().read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}, None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise Failure(f"cannot read {path()}: {error}", code=Code.USAGE) from error
    default = told.pop(DEFAULT, None)
    known = {}
    for name, fields in told.items():
        if not isinstance(fields, dict) or not isinstance(fields.get("url"), str):
            raise Failure(f"profile {name!r} in {path()} has no url", code=Code.USAGE)
        key_file = fields.get("api_key_file")
        known[name] = Profile(name, fields["url"], Path(key_file) if key_file else None)
    return known, default


def _write(known: dict[str, Profile], default: str | None) -> None:
    # A basic string of TOML is written as one of JSON.
    lines = [] if default is None else [f"{DEFAULT} = {json.dumps(default)}"]
    for one in known.values():
        lines += ["", f"[{one.name}]", f"url = {json.dumps(one.url)}"]
        if one.api_key_file is not None:
            lines.append(f"api_key_file = {json.dumps(str(one.api_key_file))}")
    path().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path().write_text("\n".join(lines).lstrip() + "\n", encoding="utf-8")
