"""`overnight drill`: break a part on purpose, and see that the promises hold."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, assert_never

import typer

from overnight_server.cli import database
from overnight_server.cli.terminal import confirm, options, output
from overnight_server.cli.terminal.failures import Code, Failure

if TYPE_CHECKING:
    from overnight_server.maintenance.drill import DrillReport
    from overnight_server.settings import Settings

ADVICE = "Start the local deployment with `overnight up`, or set OVERNIGHT_REDIS_URL."

app = typer.Typer(help="Break a part on purpose, and see that nothing is lost.")


@app.callback()
def drill() -> None:
    """Break a part on purpose, and see that nothing is lost."""


@app.command()
def broker(
    *,
    tasks: Annotated[
        int, typer.Option(min=1, max=100_000, help="How many marked tasks to submit.")
    ] = 200,
    wipes: Annotated[
        int, typer.Option(min=1, max=100, help="How often to wipe Redis meanwhile.")
    ] = 3,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: options.Json = False,
) -> None:
    """Wipe Redis under a marked load; exit 5 if a task was lost, ran twice or was left behind.

    Exit 7 if no message was there when Redis was wiped: then nothing was shown. Exit 1 if Redis or
    Postgres cannot be reached, 3 if you decline.
    """
    from redis import RedisError

    from overnight_server.maintenance.drill import lose_broker

    settings = database.settings()
    if settings.redis_url is None:
        raise Failure("no Redis is known here", hint=ADVICE)
    try:
        if not yes:
            _ask(settings, wipes)
        with database.opened(database.FRONT_DOOR) as front, database.opened() as deployment:
            done = lose_broker(
                front, deployment, settings, tasks=tasks, wipes=wipes, report=output.note
            )
    except RedisError as error:
        raise Failure(f"Redis does not answer: {error}", hint=ADVICE) from error
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
            return Code.ENDED_BADLY
        case DrillOutcome.INCONCLUSIVE:
            output.note(
                "No message of the drill was in Redis when it was wiped, so nothing was shown. See "
                "that nothing is paused (`overnight pause`) and slots are free, and try again."
            )
            return Code.INCONCLUSIVE
        case _:
            assert_never(done.outcome)


def _ask(settings: "Settings", wipes: int) -> None:
    from overnight_server.maintenance.drill import others_keys
    from overnight_server.mask import mask_text

    others = others_keys(settings)
    ours = f"only keys that begin with {settings.redis_key_prefix!r}"
    what = f"{ours}, for {others} others are there" if others else "everything in it"
    output.note(f"This wipes {mask_text(settings.redis_url or '')} {wipes} times: {what}.")
    output.note(
        f"Messages on their way are lost; their tasks run about {settings.claim_ttl:.0f} s later."
    )
    confirm.confirm("Go on?")


def _show(done: "DrillReport") -> None:
    output.record(
        {
            "result": done.outcome.value,
            "submitted": done.submitted,
            "wipes": len(done.wipes),
            "keys wiped": sum(wipe.keys for wipe in done.wipes),
            "messages among them": sum(wipe.messages for wipe in done.wipes),
            "claims made anew": done.resent,
            "runs": done.runs,
            "lost": done.lost,
            "ran twice": done.doubled,
            "unfinished": done.unfinished,
            "longest wait": f"{done.longest_seconds} s",
            "took": f"{done.seconds} s",
            "user": done.user,
        }
    )
