"""The command `overnight`: every command, mounted in the order people meet them.

Nothing heavy is imported here; a command imports what it needs when it runs.
"""

import sys
from collections.abc import Callable
from io import TextIOWrapper
from typing import Annotated

import typer

from overnight_server.cli.commands import (
    add,
    audit,
    batch,
    budgets,
    bulk,
    completion,
    dags,
    dead_letters,
    drill,
    explain,
    fairness,
    forecast,
    inbox,
    keys,
    local,
    locks,
    maintenance,
    mcp,
    pauses,
    plan,
    processes,
    profiles,
    redis_acl,
    tasks,
    triggers,
    users,
    window,
)
from overnight_server.cli.terminal import options, output, shared_options
from overnight_server.cli.terminal.failures import Code, tell
from overnight_server.cli.terminal.root_command import Root

TASKS, QUEUE, DEPLOYMENT = "Your tasks", "Your queue as a whole", "This machine"
OPERATE, PROCESSES = "Operating", "Processes"

app = typer.Typer(
    cls=Root,
    name="overnight",
    help="Queue work before bed; find it done in the morning.",
    invoke_without_command=True,
    # An unexpected fault is a bug: shown plainly, without the values of variables.
    pretty_exceptions_enable=False,
)
config = typer.Typer(help="Look at the settings in force.")


@app.callback()
def root(
    context: typer.Context,
    *,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Queue work before bed; find it done in the morning."""
    if version:
        print_version()
        raise typer.Exit
    if context.invoked_subcommand is None:
        output.line(context.get_help())


def print_version() -> None:
    """Print the version."""
    from importlib.metadata import version as installed

    output.line(f"overnight {installed('overnight')}")


@config.command("show")
def config_show(*, as_json: options.Json = False) -> None:
    """Print every setting, its value and where the value came from; secrets are masked."""
    from overnight_server.cli.commands.config import show

    show(as_json=as_json)


COMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    TASKS: {
        "add": add.add,
        "batch": batch.batch,
        "list": tasks.list_,
        "get": tasks.get,
        "wait": tasks.wait,
        "cancel": tasks.cancel,
        "limits": tasks.limits,
        "explain": explain.explain,
        "forecast": forecast.forecast,
        "plan": plan.plan,
        "mcp": mcp.mcp,
    },
    QUEUE: {
        "queue": add.queue,
        "queue-status": tasks.queue_status,
        "queue-cancel": tasks.cancel,
        "window": window.window,
    },
    DEPLOYMENT: {"up": local.up, "down": local.down, "doctor": local.doctor},
    OPERATE: {
        "migrate": maintenance.migrate,
        "sweep": maintenance.sweep,
        "redis-acl": redis_acl.redis_acl,
        "fairness": fairness.fairness,
        "pause": pauses.pause,
        "resume": pauses.resume,
        "workers": pauses.workers,
        "pools": pauses.pools,
        "drain": pauses.drain,
        "approve": budgets.approve,
        "stop": budgets.stop,
    },
    PROCESSES: {
        "api": processes.api,
        "dispatcher": processes.dispatcher,
        "worker": processes.worker,
        "maintenance": processes.maintenance,
        "beat": processes.beat,
        "flower": processes.flower,
    },
}
for panel, commands in COMMANDS.items():
    for name, command in commands.items():
        app.command(name, rich_help_panel=panel)(command)

app.command("version")(print_version)
app.command("completion")(completion.completion)
app.add_typer(profiles.app, name="profile", rich_help_panel=TASKS)
app.add_typer(dags.app, name="dag", rich_help_panel=TASKS)
app.add_typer(bulk.app, name="bulk", rich_help_panel=TASKS)
app.add_typer(triggers.app, name="trigger", rich_help_panel=TASKS)
app.add_typer(budgets.approvals, name="approvals", rich_help_panel=OPERATE)
app.add_typer(budgets.budget, name="budget", rich_help_panel=OPERATE)
app.add_typer(dead_letters.app, name="dead", rich_help_panel=OPERATE)
app.add_typer(inbox.app, name="inbox", rich_help_panel=OPERATE)
app.add_typer(drill.app, name="drill", rich_help_panel=OPERATE)
app.add_typer(users.app, name="user", rich_help_panel=OPERATE)
# The same group under the name that some write.
app.add_typer(users.app, name="users", hidden=True)
app.add_typer(locks.app, name="locks", rich_help_panel=OPERATE)
app.add_typer(keys.app, name="key", rich_help_panel=OPERATE)
app.add_typer(keys.app, name="keys", hidden=True)
app.add_typer(audit.app, name="audit", rich_help_panel=OPERATE)
app.add_typer(config, name="config", rich_help_panel=OPERATE)
shared_options.give(app)


def main() -> None:
    """Run the command line of this process."""
    if isinstance(sys.stdout, TextIOWrapper):
        # A locale that lacks a letter of a title must not end the command.
        sys.stdout.reconfigure(errors="backslashreplace")
    for word in sys.argv[1:]:
        if not word.isascii() and word != word.encode(errors="replace").decode():
            tell(f"{word!a} is not valid UTF-8", "Give every argument in UTF-8.")
            sys.exit(Code.USAGE)
    app(prog_name="overnight")


if __name__ == "__main__":
    main()
