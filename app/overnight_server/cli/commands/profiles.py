"""`overnight profile`: save the addresses and keys of servers under names."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from overnight_server.cli.terminal import options, output
from overnight_server.cli.terminal.failures import Code, CommandFailure

if TYPE_CHECKING:
    from overnight.client.profiles import Profile

app = typer.Typer(help="Save the addresses and keys of servers under names.", no_args_is_help=True)


@app.command("list")
def list_(*, as_json: options.Json = False) -> None:
    """List the profiles."""
    from overnight.client.profiles import path

    profiles, default = _read()
    rows = [
        {
            "name": profile.name,
            "default": profile.name == default,
            "url": profile.url,
            "api_key_file": None if profile.api_key_file is None else str(profile.api_key_file),
        }
        for profile in profiles.values()
    ]
    if as_json:
        output.document(rows)
    else:
        headers = ("NAME", "DEFAULT", "URL", "KEY FILE")
        cells = [tuple(row.values()) for row in rows]
        output.table(headers, cells, empty=f"No profiles in {path()}.", optional=("KEY FILE",))


@app.command()
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the profile.")],
    *,
    url: Annotated[str, typer.Option(help="Address of the server.")],
    api_key_file: Annotated[Path | None, typer.Option(help="File that holds the API key.")] = None,
    default: Annotated[
        bool, typer.Option("--default", help="Use this profile by default.")
    ] = False,
) -> None:
    """Add a profile, or change one."""
    from overnight.client.profiles import DEFAULT, Profile, path

    if name == DEFAULT or not name.isidentifier():
        hint = "Use letters, digits and _, such as work."
        raise CommandFailure(f"{name!r} is not a valid profile name.", hint=hint, code=Code.USAGE)
    profiles, before = _read()
    profiles[name] = Profile(name, _address(url), api_key_file and _key_file(api_key_file))
    _write(profiles, name if default else before)
    output.line(f"Saved profile {name} in {path()}.")


@app.command()
def remove(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the profile.")],
) -> None:
    """Remove a profile, but not its key file. If it was the default, none is then."""
    profiles, default = _read()
    _check_exists(name, profiles)
    del profiles[name]
    _write(profiles, None if name == default else default)
    output.line(f"Removed profile {name}.")


@app.command("default")
def default_(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Profile to use by default.")
    ] = None,
    *,
    unset: Annotated[bool, typer.Option("--unset", help="Use no profile by default.")] = False,
) -> None:
    """Show or change the profile that is used by default."""
    profiles, before = _read()
    if name is not None and unset:
        raise CommandFailure("NAME and --unset cannot be used together", code=Code.USAGE)
    if name is not None:
        _check_exists(name, profiles)
    after = name or (None if unset else before)
    if after != before:
        _write(profiles, after)
    if after is None:
        output.note("No default profile is set.")
    else:
        output.line(after)


def _check_exists(name: str, profiles: "dict[str, Profile]") -> None:
    if name not in profiles:
        hint = f"Existing profiles: {', '.join(sorted(profiles)) or 'none'}."
        raise CommandFailure(f"There is no profile {name!r}.", hint=hint, code=Code.USAGE)


def _address(url: str) -> str:
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        is_address = False
    if not is_address:
        hint = "Write http:// or https:// and a host, such as https://overnight.example."
        raise CommandFailure(f"--url: {url!r} is not an address", hint=hint, code=Code.USAGE)
    return url


def _key_file(path: Path) -> Path:
    """Return the absolute path of the key file; raise CommandFailure if it holds no key."""
    from overnight.client.discovery import read_key
    from overnight.errors import NotConfigured

    file = path.expanduser().absolute()
    try:
        read_key(file)
    except NotConfigured as error:
        hint = "Pass a file that holds an API key and nothing else."
        raise CommandFailure(f"--api-key-file: {error}", hint=hint, code=Code.USAGE) from error
    return file


def _read() -> "tuple[dict[str, Profile], str | None]":
    from overnight.client.profiles import read
    from overnight.errors import NotConfigured

    try:
        return read()
    except NotConfigured as error:
        raise CommandFailure(str(error), code=Code.USAGE) from error


def _write(profiles: "dict[str, Profile]", default: str | None) -> None:
    from overnight.client.profiles import DEFAULT, path

    # A JSON string is also a valid TOML string.
    lines = [] if default is None else [f"{DEFAULT} = {json.dumps(default)}"]
    for profile in profiles.values():
        lines += ["", f"[{profile.name}]", f"url = {json.dumps(profile.url)}"]
        if profile.api_key_file is not None:
            lines.append(f"api_key_file = {json.dumps(str(profile.api_key_file))}")
    path().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path().write_text("\n".join(lines).lstrip() + "\n", encoding="utf-8")
