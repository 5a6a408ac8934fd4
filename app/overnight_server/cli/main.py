"""The command `overnight`: all commands, in the order of the help page.

Server packages are imported only by the commands that need them, when they run, so that the users'
commands work with the plain `pip install overnight`.
"""

import sys
from collections.abc import Callable
from io import TextIOWrapper
from typing import Annotated

import typer

from overnight_server.cli.commands import (
    account,
    add,
    agent_profiles,
    agents,
    apply,
    artifacts,
    audit,
    backup,
    batch,
    budgets,
    bulk,
    completion,
    config,
    dags,
    dashboard,
    dead_letters,
    demo,
    drill,
    fairness,
    forecast,
    hooks,
    inbox,
    keys,
    local,
    locks,
    logs,
    maintenance,
    nights,
    notify,
    pauses,
    processes,
    profiles,
    retention,
    rules,
    schedules,
    stats,
    task_changes,
    tasks,
    triggers,
    users,
)
from overnight_server.cli.terminal import options, output
from overnight_server.cli.terminal.failures import Code, CommandFailure, report
from overnight_server.cli.terminal.root_command import Root

TASKS, QUEUE, LOCAL = "Your tasks", "Your queue", "This machine"
OPERATE, PROCESSES = "Operating (needs an admin's key)", "Processes"
DATABASE = "Operating (needs the database)"

app = typer.Typer(
    cls=Root,
    name="overnight",
    help="Queue work before bed; find it done in the morning.",
    invoke_without_command=True,
    # An unexpected exception is a bug: print its traceback, without the values of variables.
    pretty_exceptions_enable=False,
)


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
    from importlib.metadata import version

    output.line(f"overnight {version('overnight')}")


COMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    TASKS: {
        "add": add.add,
        "batch": batch.batch,
        "list": tasks.list_,
        "get": tasks.get,
        "events": tasks.events,
        "logs": logs.logs,
        "wait": tasks.wait,
        "cancel": tasks.cancel,
        "retry": task_changes.retry,
        "edit": task_changes.edit,
        "overrule": task_changes.overrule,
        "apply": apply.apply,
        "limits": account.limits,
        "usage": account.usage,
        "approve": budgets.approve,
        "stop": budgets.stop,
        "explain": tasks.explain,
        "forecast": forecast.forecast,
        "night": nights.night,
        "report": nights.report,
        "plan": batch.plan,
        "open": dashboard.open_,
        "mcp": processes.mcp,
    },
    QUEUE: {
        "queue": add.queue,
        "queue-status": tasks.queue_status,
        "queue-cancel": tasks.cancel,
        "window": account.window,
    },
    LOCAL: {
        "up": local.up,
        "down": local.down,
        "doctor": local.doctor,
        "demo": demo.demo,
        "backup": backup.backup,
        "restore": backup.restore,
    },
    OPERATE: {
        "fairness": fairness.fairness,
        "stats": stats.stats,
        "pause": pauses.pause,
        "resume": pauses.resume,
        "workers": pauses.workers,
        "pools": pauses.pools,
        "drain": pauses.drain,
    },
    DATABASE: {
        "migrate": maintenance.migrate,
        "sweep": maintenance.sweep,
        "after-restore": backup.after_restore,
        "redis-acl": maintenance.redis_acl,
    },
    PROCESSES: {
        "api": processes.api,
        "dispatcher": processes.dispatcher,
        "worker": processes.worker,
        "maintenance": processes.maintenance,
        "beat": processes.beat,
        "agent-driver": processes.agent_driver,
        "notifier": processes.notifier,
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
app.add_typer(artifacts.app, name="artifacts", rich_help_panel=TASKS)
app.add_typer(bulk.app, name="bulk", rich_help_panel=TASKS)
app.add_typer(triggers.app, name="trigger", rich_help_panel=TASKS)
app.add_typer(schedules.app, name="schedule", rich_help_panel=TASKS)
app.add_typer(hooks.app, name="hooks", rich_help_panel=TASKS)
app.add_typer(rules.app, name="rule", rich_help_panel=TASKS)
app.add_typer(agent_profiles.app, name="agent-profile", rich_help_panel=TASKS)
app.add_typer(budgets.approvals, name="approvals", rich_help_panel=TASKS)
app.add_typer(agents.app, name="agents", rich_help_panel=TASKS)
app.add_typer(notify.app, name="notify", rich_help_panel=TASKS)
app.add_typer(budgets.budget, name="budget", rich_help_panel=OPERATE)
app.add_typer(dead_letters.app, name="dead", rich_help_panel=OPERATE)
app.add_typer(inbox.app, name="inbox", rich_help_panel=OPERATE)
app.add_typer(drill.app, name="drill", rich_help_panel=DATABASE)
app.add_typer(users.app, name="user", rich_help_panel=OPERATE)
# The plural names are accepted too, because many people type them.
app.add_typer(users.app, name="users", hidden=True)
app.add_typer(locks.app, name="locks", rich_help_panel=OPERATE)
app.add_typer(keys.app, name="key", rich_help_panel=OPERATE)
app.add_typer(keys.app, name="keys", hidden=True)
app.add_typer(audit.app, name="audit", rich_help_panel=OPERATE)
app.add_typer(retention.app, name="retention", rich_help_panel=OPERATE)
app.add_typer(config.app, name="config", rich_help_panel=LOCAL)
options.add_common_options(app)


def main() -> None:
    """Run the command line of this process."""
    if isinstance(sys.stdout, TextIOWrapper):
        # A character that the locale cannot encode must not end the command.
        sys.stdout.reconfigure(errors="backslashreplace")
    for argument in sys.argv[1:]:
        if not argument.isascii() and argument != argument.encode(errors="replace").decode():
            hint = "Write every argument in UTF-8."
            report(CommandFailure(f"{argument!a} is not valid UTF-8", hint=hint, code=Code.USAGE))
            sys.exit(Code.USAGE)
    app(prog_name="overnight")


if __name__ == "__main__":
    main()
