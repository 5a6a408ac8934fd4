"""Async handlers for workers of tests."""

import asyncio
import time
from pathlib import Path

from overnight import Context, handler


@handler("async.sleep")
async def sleep(ctx: Context) -> None:
    """Sleep in two tasks of a group; write into a file when both were cancelled."""
    ended = []

    async def wait(name: str) -> None:
        try:
            await asyncio.sleep(300)
        finally:
            ended.append(name)

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(wait("one"))
            group.create_task(wait("two"))
    finally:
        Path(ctx.payload["file"]).write_text(",".join(sorted(ended)))  # noqa: ASYNC240 - short


@handler("async.block")
async def block(_ctx: Context) -> None:
    """Block the event loop, and so never notice a cancel."""
    time.sleep(300)  # noqa: ASYNC251 - this is what the handler is for


@handler("async.context")
async def use_context(ctx: Context) -> object:
    """Use the context in a task of a group."""

    async def report() -> str:
        ctx.progress(0.5, "half")
        ctx.cost(0.25)
        return ctx.artifact("note", "text")

    async with asyncio.TaskGroup() as group:
        task = group.create_task(report())
    return {"is_artifact": task.result().startswith("art_")}
