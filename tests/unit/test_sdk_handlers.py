"""Registering handlers, and running them without servers."""

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import pytest

from overnight import (
    Cancel,
    Context,
    Fail,
    InvalidOutput,
    RateLimited,
    Retry,
    Snooze,
    Stopped,
    handler,
    testing,
)
from overnight.errors import DuplicateHandler
from overnight.handlers import registry
from overnight.handlers.control_exceptions import ControlException


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_handlers", {})
    return


def greet(ctx: Context) -> object:
    return {"hello": ctx.payload["name"]}


def part(ctx: Context) -> object:
    return "goodbye"


def test_a_registered_function_is_found_by_its_type() -> None:
    returned = handler("greet", capabilities=["web", "code", "web"])(greet)

    registered = registry.registered()["greet"]
    assert returned is greet
    assert registered.function is greet
    assert registered.capabilities == ("code", "web")


def test_capabilities_of_all_handlers_are_offered() -> None:
    handler("greet", capabilities=["web"])(greet)
    handler("part", capabilities=["code", "web"])(part)

    assert registry.capabilities_offered() == ("code", "web")


def test_a_handler_without_a_type_is_told_what_to_write() -> None:
    with pytest.raises(TypeError, match=r'the type of task: write @handler\("greet"\)'):
        handler(greet)  # type: ignore[arg-type]


def test_a_second_handler_of_a_type_is_refused() -> None:
    handler("greet")(greet)

    with pytest.raises(DuplicateHandler, match=r"\.greet and .*\.part"):
        handler("greet")(part)

    assert registry.registered()["greet"].function is greet


def test_the_same_function_may_be_registered_again() -> None:
    handler("greet")(greet)
    handler("greet", capabilities=["web"])(greet)

    assert registry.registered()["greet"].capabilities == ("web",)


def test_the_view_of_the_registry_is_read_only() -> None:
    with pytest.raises(TypeError):
        registry.registered()["x"] = registry.Handler("x", greet)  # type: ignore[index]


async def _stream(ctx: Context) -> AsyncIterator[object]:
    yield None


@pytest.mark.parametrize("wrong", [lambda: None, lambda _a, _b: None, _stream])
def test_a_function_with_a_wrong_signature_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError):
        handler("wrong")(wrong)

    assert "wrong" not in registry.registered()


@pytest.mark.parametrize("name", ["", " echo", "echo\n"])
def test_a_type_without_a_plain_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="a handler's type is a name"):
        handler(name)


def test_a_handler_runs_in_process_by_function_or_type() -> None:
    handler("greet")(greet)

    assert testing.run(greet, {"name": "moon"}).output == {"hello": "moon"}
    assert testing.run("greet", {"name": "sun"}).output == {"hello": "sun"}


def test_the_context_records_progress_logs_and_costs() -> None:
    def talk(ctx: Context) -> object:
        ctx.progress(0.5, "half", page=3)
        ctx.log("reading", file="a.txt")
        ctx.cost(0.25, input_tokens=10, output_tokens=2)
        ctx.cost(0.5)
        return ctx.idempotency_key

    ran = testing.run(talk)

    assert ran.context.progress_reports == [{"fraction": 0.5, "message": "half", "page": 3}]
    assert ran.context.log_lines == [{"message": "reading", "file": "a.txt"}]
    assert ran.context.cost_usd == 0.75
    assert ran.context.tokens == {"input": 10, "output": 2}
    assert ran.output == f"{testing.TASK_ID}:1"


@pytest.mark.parametrize("output", [{1, 2}, object(), float("nan")])
def test_an_output_that_json_cannot_hold_is_refused(output: object) -> None:
    with pytest.raises(InvalidOutput):
        testing.run(lambda _ctx: output)


def test_a_stopped_run_ends_at_its_next_check() -> None:
    ctx = testing.MemoryContext()
    ctx.check()
    ctx.stop()

    assert ctx.cancelled
    with pytest.raises(Stopped, match="cancelled"):
        ctx.check()


def test_a_run_times_out_when_its_clock_has_passed() -> None:
    ctx = testing.MemoryContext(timeout_seconds=60)

    ctx.pass_time(59)
    assert (ctx.seconds_left, ctx.cancelled) == (1.0, False)

    ctx.pass_time(2)
    assert (ctx.seconds_left, ctx.stop_reason) == (0.0, "timeout")


def test_except_exception_does_not_catch_a_stop() -> None:
    def stubborn(ctx: Context) -> object:
        try:
            ctx.check()
        except Exception:  # noqa: BLE001 - what careless handlers do
            return "went on"
        return "done"

    ctx = testing.MemoryContext()
    ctx.stop()

    with pytest.raises(Stopped):
        testing.run(stubborn, context=ctx)


@pytest.mark.parametrize(
    ("raised", "error_class", "seconds"),
    [
        (Retry(after=5), "error", 5.0),
        (Retry("flaky", after=timedelta(minutes=1), error_class="crash"), "crash", 60.0),
        (Retry(), "error", None),
        (Snooze(90), "snooze", 90.0),
        (RateLimited(reset_after=timedelta(hours=1)), "rate_limit", 3600.0),
    ],
)
def test_a_control_exception_has_a_wait(
    raised: Any, error_class: str, seconds: float | None
) -> None:
    assert isinstance(raised, ControlException)
    assert raised.error_class == error_class
    assert raised.after_seconds == seconds


def test_a_control_exception_has_an_error_class() -> None:
    assert Fail("no key", error_class="auth_failure").error_class == "auth_failure"
    assert InvalidOutput("not a table").message == "not a table"
    assert Cancel("not needed any more").error_class == "cancelled"


@pytest.mark.parametrize("wait", [-1, float("nan"), float("inf"), timedelta(seconds=-1)])
def test_a_wait_is_never_negative_or_endless(wait: Any) -> None:
    with pytest.raises(ValueError, match="0 seconds or more"):
        Snooze(wait)
