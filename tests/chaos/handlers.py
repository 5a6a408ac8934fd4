"""Fake agents: they work, fail, die and disobey as their payload says, and write down the truth."""

import os
import signal
import time

from overnight import Context, handler
from tests.chaos.handler_record import note
from tests.support.recorded_actions import token_suffix

PAUSE_SECONDS = 0.02


@handler("agent")
def agent(ctx: Context) -> object:
    """Work for `seconds`, fail the first `failures` attempts, and return this run's own key."""
    return _work(ctx, stubborn=False)


@handler("quick")
def quick(ctx: Context) -> object:
    """Work for no time at all."""
    return _work(ctx, stubborn=False)


@handler("stubborn")
def stubborn(ctx: Context) -> object:
    """Work like an agent that does not listen when asked to stop."""
    return _work(ctx, stubborn=True)


@handler("brood")
def brood(ctx: Context) -> object:
    """Keep an artifact, spawn three, and wait for them; the same three however often it runs."""
    _note("start", ctx, type=ctx.type)
    try:
        ctx.artifact("plan", json={"key": ctx.idempotency_key})
        number = ctx.payload.get("number")
        for place in range(3):
            # Many tries: it is the parent that this is about.
            ctx.spawn(f"child {place}", "quick", payload={"number": number}, max_attempts=20)
        states = [child.state for child in ctx.wait_for()]
    except BaseException as error:
        _note("end", ctx, ok=False, error=type(error).__name__)
        raise
    _note("end", ctx, ok=True)
    return {"key": ctx.idempotency_key, "states": states}


@handler("poison")
def poison(ctx: Context) -> object:
    """Kill the process it runs in."""
    _note("start", ctx, type=ctx.type)
    os.kill(os.getpid(), signal.SIGKILL)
    return None


def _note(what: str, ctx: Context, **more: object) -> None:
    """Write down what this very run does: it is known by the token that it was given."""
    seal = token_suffix(ctx.environ["OVERNIGHT_CLAIM_TOKEN"])
    note(what, ctx.idempotency_key, seal=seal, **more)


def _fail_if_asked(ctx: Context) -> None:
    if ctx.attempt <= int(ctx.payload.get("failures", 0)):
        raise RuntimeError(f"attempt {ctx.attempt} was to fail")


def _work(ctx: Context, *, stubborn: bool) -> object:
    _note("start", ctx, type=ctx.type)
    try:
        until = time.monotonic() + float(ctx.payload.get("seconds", 0))
        while (left := until - time.monotonic()) > 0:
            if not stubborn:
                ctx.check()
            time.sleep(min(left, PAUSE_SECONDS))
        ctx.cost(0.001)
        _fail_if_asked(ctx)
    except BaseException as error:
        _note("end", ctx, ok=False, error=type(error).__name__)
        raise
    _note("end", ctx, ok=True)
    return {"key": ctx.idempotency_key, "number": ctx.payload.get("number")}
