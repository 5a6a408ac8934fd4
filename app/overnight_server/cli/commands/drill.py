"""`overnight drill`: wipe Redis under load and check that no task is lost."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, assert_never

import typer

from overnight_server.cli import database
from overnight_server.cli.terminal import confirm, options, output
from overnight_server.cli.terminal.failures import Code, CommandFailure

if TYPE_CHECKING:
    from overnight_server.maintenance.drill import DrillReport
    from overnight_server.settings import Settings

app = typer.Typer(
    help="Break a part on purpose and check that no task is lost.", no_args_is_help=True
)


@app.callback()
def drill() -> None:
    """Break a part on purpose and check that no task is lost."""


@app.command()
def broker(
    *,
    tasks: Annotated[
        int, typer.Option(min=1, max=100_000, help="Number of test tasks to submit.")
    ] = 200,
    wipes: Annotated[int, typer.Option(min=1, max=100, help="Number of times to wipe Redis.")] = 3,
    yes: options.Yes = False,
    as_json: options.Json = False,
) -> None:
    """Wipe Redis while test tasks run; exit 5 if a task was lost, ran twice or did not end.

    Exit 7 if Redis held no message when it was wiped, because then the drill proves nothing. Exit 1
    if Redis or Postgres cannot be reached, 3 if you decline.
    """
    from redis import RedisError

    from overnight_server.maintenance.drill import lose_broker

    settings = database.settings_with_servers()
    try:
        if not yes:
            _confirm(settings, wipes)
        with database.opened(database.ADMIN_ROLE) as admin_db, database.opened() as db:
            done = lose_broker(admin_db, db, settings, tasks=tasks, wipes=wipes, report=output.note)
    except RedisError as error:
        raise CommandFailure(
            f"Redis does not respond: {error}", hint=database.NO_REDIS_ADVICE
        ) from error
    if as_json:
        output.document(asdict(done) | {"result": done.outcome, "passed": done.passed})
    else:
        _show(done)
    raise typer.Exit(_code(done))


def _code(done: "DrillReport") -> Code:
    from overnight_server.maintenance.drill import DrillOutcome

    match done.outcome:
        case DrillOutcome.PASSED:
            return Code.OK
        case DrillOutcome.FAILED:
            return Code.NOT_COMPLETED
        case DrillOutcome.INCONCLUSIVE:
            output.note(
                "Redis held no message when it was wiped, so the drill proves nothing. "
                "Check that nothing is paused (`overnight pause`) and that slots are free; then "
                "try again."
            )
            return Code.INCONCLUSIVE
        case _:
            assert_never(done.outcome)


def _confirm(settings: "Settings", wipes: int) -> None:
    from overnight_server.maintenance.drill import others_keys
    from overnight_server.mask import mask_text

    others = others_keys(settings)
    prefix = settings.redis_key_prefix
    scope = (
        f"all keys that begin with {prefix!r}; {others} other keys stay" if others else "all keys"
    )
    output.note(f"This wipes {mask_text(settings.redis_url or '')} {wipes} times: {scope}.")
    output.note(
        f"Messages in Redis are lost; their tasks start about {settings.claim_ttl:.0f} s later."
    )
    confirm.confirm("Continue?")


def _show(done: "DrillReport") -> None:
    output.record(
        {
            "result": done.outcome.value,
            "submitted": done.submitted,
            "wipes": len(done.wipes),
            "keys wiped": sum(wipe.keys for wipe in done.wipes),
            "messages wiped": sum(wipe.messages for wipe in done.wipes),
            "claims sent again": done.resent,
            "runs": done.runs,
            "lost": done.lost,
            "ran twice": done.doubled,
            "unfinished": done.unfinished,
            "longest wait": f"{done.longest_seconds} s",
            "took": f"{done.seconds} s",
            "user": done.user,
        }
    )
