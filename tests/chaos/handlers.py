"""Handlers for chaos runs: they work, fail, crash or ignore stops, and record what they did."""

import os
import signal
import time

from overnight import Context, handler
from tests.chaos.handler_record import append
from tests.support.recorded_actions import token_suffix

PAUSE_SECONDS = 0.02


@handler("agent")
def agent(ctx: Context) -> object:
    """Work for `seconds`, fail the first `failures` attempts, and return this run's own key."""
    return _work(ctx, stubborn=False)


@handler("quick")
def quick(ctx: Context) -> object:
    """Return at once."""
    return _work(ctx, stubborn=False)


@handler("stubborn")
def stubborn(ctx: Context) -> object:
    """Work without ever checking whether the run must stop."""
    return _work(ctx, stubborn=True)


@handler("brood")
def brood(ctx: Context) -> object:
    """Store an artifact, spawn three children with fixed keys, and wait for them."""
    _record("start", ctx, type=ctx.type)
    try:
        ctx.artifact("plan", json={"key": ctx.idempotency_key})
        number = ctx.payload.get("number")
        for place in range(3):
            # Many attempts, so that the parent does not fail because of a child.
            ctx.spawn(f"child {place}", "quick", payload={"number": number}, max_attempts=20)
        states = [child.state for child in ctx.wait_for()]
    except BaseException as error:
        _record("end", ctx, ok=False, error=type(error).__name__)
        raise
    _record("end", ctx, ok=True)
    return {"key": ctx.idempotency_key, "states": states}


@handler("poison")
def poison(ctx: Context) -> object:
    """Kill the process it runs in."""
    _record("start", ctx, type=ctx.type)
    os.kill(os.getpid(), signal.SIGKILL)
    return None


def _record(what: str, ctx: Context, **more: object) -> None:
    """Record a start or an end of this run, with the suffix of its claim token."""
    suffix = token_suffix(ctx.environ["OVERNIGHT_CLAIM_TOKEN"])
    append(what, ctx.idempotency_key, token_suffix=suffix, **more)


def _fail_if_configured(ctx: Context) -> None:
    if ctx.attempt <= int(ctx.payload.get("failures", 0)):
        raise RuntimeError(f"attempt {ctx.attempt} fails on purpose")


def _work(ctx: Context, *, stubborn: bool) -> object:
    _record("start", ctx, type=ctx.type)
    try:
        until = time.monotonic() + float(ctx.payload.get("seconds", 0))
        while (left := until - time.monotonic()) > 0:
            if not stubborn:
                ctx.check()
            time.sleep(min(left, PAUSE_SECONDS))
        ctx.cost(0.001)
        _fail_if_configured(ctx)
    except BaseException as error:
        _record("end", ctx, ok=False, error=type(error).__name__)
        raise
    _record("end", ctx, ok=True)
    return {"key": ctx.idempotency_key, "number": ctx.payload.get("number")}
