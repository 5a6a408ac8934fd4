"""Demo handlers: they sleep, fail, cost money, spawn, crash or never end.

A worker loads them only with the setting `demo_handlers`, because any user could use them to end
the processes of the deployment or to occupy them.
"""

import ctypes
import os
import signal
import time

from overnight import Context, handler

PAUSE_SECONDS = 0.05
ENDLESS_SECONDS = 10**6


@handler("sleep")
def sleep(ctx: Context) -> object:
    """Sleep `seconds`; with `stubborn` even when requested to stop."""
    seconds = float(ctx.payload.get("seconds", 1))
    stubborn = bool(ctx.payload.get("stubborn", False))
    end_at = time.monotonic() + seconds
    while (left := end_at - time.monotonic()) > 0:
        if not stubborn:
            ctx.check()
        if seconds:
            ctx.progress(1 - left / seconds)
        time.sleep(min(left, PAUSE_SECONDS))
    return {"slept": seconds}


@handler("flaky")
def flaky(ctx: Context) -> object:
    """Fail the first `failures` attempts, then succeed."""
    failures = int(ctx.payload.get("failures", 1))
    if ctx.attempt <= failures:
        raise RuntimeError(f"attempt {ctx.attempt} of {failures} that fail")
    return {"attempts": ctx.attempt}


@handler("cost")
def cost(ctx: Context) -> object:
    """Report `calls` model calls of `usd`, `input_tokens` and `output_tokens` each.

    Each call takes `seconds`; after each the run stops if that was requested.
    """
    usd = float(ctx.payload.get("usd", 0.01))
    calls = int(ctx.payload.get("calls", 1))
    for call in range(calls):
        ctx.cost(
            usd,
            input_tokens=int(ctx.payload.get("input_tokens", 0)),
            output_tokens=int(ctx.payload.get("output_tokens", 0)),
        )
        if call < calls - 1:
            time.sleep(float(ctx.payload.get("seconds", 0)))
            ctx.check()
    return {"usd": usd * calls}


@handler("family")
def family(ctx: Context) -> object:
    """Spawn `children` tasks of the type `of`, wait for them, and return states and outputs.

    Each child's payload has its number; the plan is stored as an artifact.
    """
    count = int(ctx.payload.get("children", 3))
    kind = str(ctx.payload.get("of", "echo"))
    plan = ctx.artifact("plan", json={"children": count, "of": kind})
    payload = ctx.payload.get("payload", {})
    for number in range(1, count + 1):
        ctx.spawn(f"{ctx.title} {number}", kind, payload={**payload, "number": number})
    children = ctx.wait_for()
    return {
        "plan": plan,
        "states": [child.state for child in children],
        "outputs": [child.output for child in children],
    }


@handler("crash")
def crash(ctx: Context) -> object:
    """End its own process: `how` is `kill` (as the kernel would) or `exit`."""
    how = ctx.payload.get("how", "kill")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit":
        os._exit(int(ctx.payload.get("code", 1)))
    raise ValueError(f"how: {how!r} is neither 'kill' nor 'exit'")


@handler("spin")
def spin(ctx: Context) -> object:
    """Never end; with `gil` no other Python code of the process can run meanwhile."""
    if ctx.payload.get("gil", False):
        # PyDLL keeps the interpreter's lock during the call.
        ctypes.PyDLL(None).sleep(ENDLESS_SECONDS)
    while True:
        pass
