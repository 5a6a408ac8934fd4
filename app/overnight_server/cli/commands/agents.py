"""`overnight agents`: add, list, drain and remove agents outside the deployment."""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from overnight_server.cli import connection
from overnight_server.cli.terminal import options, output, task_output
from overnight_server.cli.terminal.failures import Code, CommandFailure

if TYPE_CHECKING:
    from overnight import Client

app = typer.Typer(help="Add, list, drain and remove agents.", no_args_is_help=True)

HEADERS = ("NAME", "ID", "STATUS", "HEALTH", "BUSY", "SLOTS", "TYPES", "URL", "CHECKED", "DETAIL")
OPTIONAL = ("ID", "CHECKED", "TYPES", "DETAIL")
ONCE = "Give the secret to the agent now; it cannot be shown again."
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name or id of the agent.")]


@app.command()
def add(
    agent_url: Annotated[str, typer.Argument(metavar="URL", help="Address of the HTTP agent.")],
    *,
    name: Annotated[
        str | None, typer.Option(help="Name of the agent. Default: host and port.")
    ] = None,
    types: Annotated[
        str | None, typer.Option(metavar="A,B", help="Types of task that it runs. Default: all.")
    ] = None,
    capabilities: Annotated[
        str | None, typer.Option(metavar="A,B", help="Capabilities that it offers.")
    ] = None,
    slots: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Tasks that it runs at once. Default: 1.")
    ] = None,
    secret_from: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE",
            help="Where the agent's secret is: a file, env:NAME, or - for standard input. "
            "Default: a new secret is made and printed.",
        ),
    ] = None,
    everyone: Annotated[
        bool, typer.Option("--everyone", help="Run the tasks of all users; needs an admin's key.")
    ] = False,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Add an HTTP agent, or change the one of this name; print its secret if one was made."""
    secret = None if secret_from is None else _read_secret(secret_from)
    with connection.client(url, api_key_file) as client:
        agent = client.agents.add(
            agent_url,
            name=name,
            types=_words(types),
            capabilities=_words(capabilities),
            slots=slots,
            secret=secret,
            serves="everyone" if everyone else "me",
        )
    if as_json:
        output.document(task_output.as_document(agent))
    elif secret is None:
        output.line(agent.secret)
        output.note(f"Added {agent.name}, {agent.url}. {ONCE}")
    else:
        output.line(f"Added {agent.name}, {agent.url}.")


@app.command("list")
def list_(
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """List your agents, with the health of HTTP agents."""
    with connection.client(url, api_key_file) as client:
        agents = list(client.agents.list())
    if as_json:
        output.document([task_output.as_document(agent) for agent in agents])
        return
    rows = [
        (
            agent.name,
            agent.id,
            agent.status,
            agent.health,
            agent.busy,
            agent.slots,
            agent.types or "all",
            agent.url,
            agent.checked_at,
            agent.health_detail,
        )
        for agent in agents
    ]
    output.table(HEADERS, rows, empty="No agents.", optional=OPTIONAL)


@app.command()
def drain(
    name: Name,
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Give an agent no new tasks; it finishes what it runs. Add it again to undo this."""
    with connection.client(url, api_key_file) as client:
        agent_id = _agent_id(client, name)
        client.agents.drain(agent_id)
    if as_json:
        output.document({"id": agent_id, "draining": True})
    else:
        output.line(f"{name} gets no new tasks.")


@app.command()
def remove(
    name: Name,
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Remove an agent; what an HTTP agent runs is stopped there and run elsewhere."""
    with connection.client(url, api_key_file) as client:
        agent_id = _agent_id(client, name)
        client.agents.remove(agent_id)
    if as_json:
        output.document({"id": agent_id, "removed": True})
    else:
        output.line(f"{name} removed")


def _agent_id(client: "Client", name: str) -> str:
    """Return the id of the agent with this name or id."""
    for agent in client.agents.list():
        if name in {agent.name, agent.id}:
            return agent.id
    raise CommandFailure(
        f"There is no agent {name!r}.", hint="`overnight agents list` lists them.", code=Code.USAGE
    )


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]


def _read_secret(source: str) -> str:
    """Return a secret from a file, a variable or standard input."""
    if source == "-":
        return sys.stdin.read().strip()
    if source.startswith("env:"):
        return os.environ.get(source.removeprefix("env:"), "").strip()
    with suppress(OSError, UnicodeDecodeError):
        return Path(source).read_text(encoding="utf-8").strip()
    raise CommandFailure(
        f"The secret cannot be read from {source}.",
        hint="Name a file, env:NAME, or - for standard input.",
        code=Code.USAGE,
    )
