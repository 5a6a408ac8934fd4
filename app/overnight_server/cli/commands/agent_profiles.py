"""`overnight agent-profile`: how agents are run; every user reads profiles, admins change them."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from overnight_server.cli import connection
from overnight_server.cli.commands import batch_files
from overnight_server.cli.terminal import arguments, options, output, task_output
from overnight_server.cli.terminal.failures import Code, CommandFailure

if TYPE_CHECKING:
    from overnight.models.execution import NamedAgentProfile

app = typer.Typer(help="Agent profiles: which command runs an agent.", no_args_is_help=True)
HEADERS = ("NAME", "NETWORK", "MODELS", "COMMAND")
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the profile.")]


@app.command("list")
def list_(
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """List the agent profiles that `overnight add --agent` can name."""
    with connection.client(url, api_key_file) as client:
        profiles = client.agent_profiles.list()
    if as_json:
        output.document([task_output.as_document(profile) for profile in profiles])
        return
    output.table(HEADERS, [_row(profile) for profile in profiles], empty="No agent profiles.")


@app.command()
def show(
    name: Name,
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Show one agent profile."""
    with connection.client(url, api_key_file) as client:
        profile = client.agent_profiles.get(name)
    if as_json:
        output.document(task_output.as_document(profile))
    else:
        output.line(json.dumps(profile.profile, indent=2, ensure_ascii=False))


@app.command()
def add(
    name: Name,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Profile, YAML or JSON; - reads stdin.")
    ],
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Add an agent profile, or replace the one of this name; for admins.

    Sources of mounts may be relative to FILE. Tasks that exist already keep the command that they
    were created with.
    """
    profile = _with_absolute_sources(
        _profile_in(file), Path() if file == "-" else Path(file).parent
    )
    with connection.client(url, api_key_file, as_admin=True) as client:
        added = client.agent_profiles.set(name, profile)
    if as_json:
        output.document(task_output.as_document(added))
    else:
        output.line(f"Agent profile {added.name} is set.")


@app.command()
def remove(
    name: Name,
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Remove an agent profile: no new task can name it; for admins."""
    with connection.client(url, api_key_file, as_admin=True) as client:
        removed = client.agent_profiles.remove(name)
    if as_json:
        output.document(task_output.as_document(removed))
    else:
        output.line(f"Agent profile {removed.name} is removed.")


def _profile_in(file: str) -> dict[str, Any]:
    """Return the profile of a file; raise CommandFailure unless the file is one object."""
    text = arguments.text_of("-" if file == "-" else f"@{file}")
    try:
        documents = [document.value for document in batch_files.read(text)]
    except batch_files.Unreadable as error:
        raise CommandFailure(f"{file} {error}", code=Code.USAGE) from error
    if len(documents) != 1 or not isinstance(documents[0], dict):
        hint = "Write argv, env, network, limits and models; docs/guides/commands.md."
        raise CommandFailure(f"{file} is not one object.", hint=hint, code=Code.USAGE)
    return documents[0]


def _with_absolute_sources(profile: dict[str, Any], directory: Path) -> dict[str, Any]:
    """Return a profile whose mounts have absolute sources; what is no mount is left as it is."""
    mounts = profile.get("mounts")
    if not isinstance(mounts, list):
        return profile
    return {**profile, "mounts": [_with_absolute_source(mount, directory) for mount in mounts]}


def _with_absolute_source(mount: object, directory: Path) -> object:
    source = mount.get("source") if isinstance(mount, dict) else None
    if not isinstance(mount, dict) or not isinstance(source, str) or source.startswith("/"):
        return mount
    return {**mount, "source": str((directory / source).resolve())}


def _row(named: "NamedAgentProfile") -> tuple[object, ...]:
    profile = named.profile
    network = profile.get("network", "off")
    hosts = "off" if network == "off" else ", ".join(network["allow"])
    return named.name, hosts, ", ".join(profile.get("models", ())), " ".join(profile["argv"])
