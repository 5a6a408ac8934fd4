"""Async handlers, and handlers with pydantic models, run without servers."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, Field

from overnight import Context, Fail, InvalidInput, InvalidOutput, Stopped, handler, testing
from overnight.handlers import registry
from overnight.handlers.invoke import invoke
from overnight.handlers.outcome import HandlerFailed, HandlerStopped, outcome_of
from overnight.testing import MemoryContext


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_handlers", {})
    return


class Resize(BaseModel):
    """A payload."""

    width: int = Field(ge=1, le=4000)
    formats: list[str] = ["png"]


class Resized(BaseModel):
    """An output."""

    pixels: int = Field(alias="px")


def resize(ctx: Context, payload: Resize) -> Resized:
    return Resized(px=payload.width**2)


def test_a_handler_gets_its_payload_and_returns_its_output_as_models() -> None:
    handler("resize")(resize)

    assert testing.run("resize", {"width": 20}).output == {"px": 400}


def test_a_wrong_payload_fails_for_good_and_names_each_field() -> None:
    with pytest.raises(InvalidInput) as refused:
        testing.run(resize, {"width": 5000, "formats": [7]})

    assert str(refused.value) == (
        "payload.width: is too large; legal: a whole number from 1 to 4000;"
        " payload.formats.0: is not text; legal: text"
    )
    outcome = outcome_of(None, refused.value, None)
    assert isinstance(outcome, HandlerFailed)
    assert (outcome.error_class, outcome.retryable) == ("invalid_input", False)


def test_a_wrong_payload_is_reported_without_its_values() -> None:
    with pytest.raises(InvalidInput) as refused:
        testing.run(resize, {"width": "hunter2-password"})

    outcome = outcome_of(None, refused.value, None)
    assert isinstance(outcome, HandlerFailed)
    assert "hunter2" not in outcome.message + outcome.detail
    assert refused.value.__cause__ is None


def test_an_output_that_is_not_the_declared_model_is_checked() -> None:
    def loose(ctx: Context) -> Resized:
        return ctx.payload["answer"]  # type: ignore[no-any-return]

    assert testing.run(loose, {"answer": {"px": "7"}}).output == {"px": 7}
    with pytest.raises(InvalidOutput, match=r"output\.px: is missing"):
        testing.run(loose, {"answer": {}})
    with pytest.raises(InvalidOutput, match="output: is not a JSON object"):
        testing.run(loose, {"answer": 7})


def test_a_payload_parameter_needs_a_model() -> None:
    def untyped(ctx: Context, payload: dict[str, Any]) -> object:
        return payload

    with pytest.raises(TypeError, match="annotate payload with a pydantic model"):
        handler("untyped")(untyped)


def test_an_annotation_that_cannot_be_read_is_named() -> None:
    def unknown(ctx: Context, payload: "Missing") -> object:  # type: ignore[name-defined]  # noqa: F821
        return payload

    with pytest.raises(TypeError, match="payload cannot be read: name 'Missing' is not defined"):
        handler("unknown")(unknown)


def test_an_annotation_may_be_a_text() -> None:
    def quoted(ctx: "Context", payload: "Resize") -> "Resized":
        return resize(ctx, payload)

    assert testing.run(quoted, {"width": 3}).output == {"px": 9}


async def add_all(ctx: Context, payload: Resize) -> object:
    await asyncio.sleep(0)
    ctx.progress(0.5)
    return payload.width + 1


def test_an_async_handler_runs_in_a_loop_of_its_own() -> None:
    ran = testing.run(add_all, {"width": 2})

    assert ran.output == 3
    assert ran.context.progress_reports == [{"fraction": 0.5, "message": None}]


@pytest.mark.parametrize("reason", ["cancelled", "timeout", "budget", "lost"])
def test_a_stop_cancels_every_task_of_an_async_handler(reason: str) -> None:
    ended: list[str] = []

    async def wait(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)

    async def both(ctx: Context) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(wait("one"))
            group.create_task(wait("two"))
            # From another thread, as a worker's heartbeat does.
            threading.Thread(target=context.stop, args=[reason]).start()

    context = MemoryContext()
    with pytest.raises(asyncio.CancelledError) as raised:
        testing.run(both, context=context)

    assert sorted(ended) == ["one", "two"]
    assert outcome_of(None, raised.value, context.stop_reason) == HandlerStopped(reason)


def test_a_stop_before_the_call_cancels_at_the_first_await() -> None:
    async def late(ctx: Context) -> None:
        await asyncio.Event().wait()

    context = MemoryContext()
    context.stop("cancelled")
    with pytest.raises(asyncio.CancelledError):
        testing.run(late, context=context)


def test_a_second_stop_leaves_the_clean_up_alone() -> None:
    async def tidy(ctx: Context) -> object:
        context.stop("cancelled")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            context._report_stop("lost")
            await asyncio.sleep(0.01)
            return "tidied"

    context = MemoryContext()
    assert testing.run(tidy, context=context).output == "tidied"


def test_a_shutdown_lets_an_async_handler_finish() -> None:
    async def finish(ctx: Context) -> object:
        context.stop("shutdown")
        await asyncio.sleep(0.01)
        return "finished"

    context = MemoryContext()
    assert testing.run(finish, context=context).output == "finished"


def test_a_stop_after_the_end_of_the_loop_does_nothing() -> None:
    context = MemoryContext({"width": 2})
    listeners: list[Any] = []

    def keep(listener: Any) -> None:
        listeners.append(listener)

    context.on_stop = keep  # type: ignore[method-assign]
    invoke(registry.describe("add", add_all), context)

    listeners[0]("cancelled")


def test_what_a_task_of_a_group_raises_decides_like_any_exception() -> None:
    async def fail() -> None:
        raise Fail("no such page", error_class="no_page")

    async def both(ctx: Context) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            group.create_task(asyncio.sleep(10))

    with pytest.raises(ExceptionGroup) as raised:
        invoke(registry.describe("both", both), MemoryContext())

    outcome = outcome_of(None, raised.value, None)
    assert isinstance(outcome, HandlerFailed)
    assert (outcome.error_class, outcome.message, outcome.retryable) == (
        "no_page",
        "no such page",
        False,
    )
    assert "in fail" in outcome.detail
    assert "in _cancel_on_stop" not in outcome.detail


def test_a_stop_inside_a_group_is_a_stop() -> None:
    async def check(ctx: Context) -> None:
        raise Stopped("cancelled")

    async def both(ctx: Context) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(check(ctx))

    with pytest.raises(BaseExceptionGroup) as raised:
        testing.run(both)

    assert outcome_of(None, raised.value, None) == HandlerStopped("cancelled")


def test_several_different_errors_stay_a_group() -> None:
    group = ExceptionGroup("two", [KeyError("a"), ValueError("b")])

    outcome = outcome_of(None, group, None)

    assert isinstance(outcome, HandlerFailed)
    assert outcome.error_type == "ExceptionGroup"


def test_an_async_handler_may_wait_for_children_in_a_group() -> None:
    async def spawn(ctx: Context) -> None:
        ctx.spawn("child", "echo", key="child")
        ctx.wait_for()

    async def parent(ctx: Context) -> object:
        async with asyncio.TaskGroup() as group:
            group.create_task(spawn(ctx))
        return ctx.children[0].output

    ran = testing.run(parent, context=MemoryContext(answers={"child": 7}))

    assert (ran.output, ran.runs) == (7, 2)
