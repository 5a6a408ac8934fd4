import pytest

from overnight import Cancel, Fail, InvalidOutput, RateLimited, Retry, Snooze
from overnight.handlers.control_exceptions import Stopped as HandlerMustStop
from overnight.handlers.control_exceptions import Suspended
from overnight.handlers.outcome import (
    MAX_OUTPUT_BYTES,
    Outcome,
    UnstorableOutput,
    outcome_of,
    storable,
)
from overnight.models.json_values import MAX_DEPTH
from overnight_server.domain.results import (
    Deferred,
    Interrupted,
    Raised,
    Result,
    Returned,
    StoppedByCancel,
    TimedOut,
)
from overnight_worker.result_mapping import missing_handler_result, result_of
from overnight_worker.run_context import RunContext
from overnight_worker.stop_policy import StopReason
from tests.support.sample_run import RUN


@pytest.fixture
def context() -> RunContext:
    return RunContext(RUN, deadline=0.0)


def raised_by(error: BaseException, reason: StopReason | None = None) -> Outcome:
    """The outcome of a handler that raises, called by the runner."""

    def handler() -> None:
        raise error

    try:
        handler()
    except BaseException as caught:  # noqa: BLE001 - any kind is a case here
        return outcome_of(None, caught, reason)
    raise AssertionError("it was raised")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Cancel("enough"), StoppedByCancel()),
        (HandlerMustStop("cancelled"), StoppedByCancel()),
        (HandlerMustStop("lost"), None),
        (Snooze(30), Deferred(30.0, "snooze")),
        (RateLimited(60), Deferred(60.0, "rate_limit")),
    ],
)
def test_a_handler_ends_its_task_or_puts_it_off_without_failing(
    context: RunContext, error: BaseException, expected: Result | None
) -> None:
    assert result_of(raised_by(error), RUN, context) == expected


@pytest.mark.parametrize(
    ("error", "error_class", "error_type", "retryable", "wait"),
    [
        (Retry("later", after=7), "error", "Retry", True, 7.0),
        (Retry("later", error_class="crash"), "crash", "Retry", True, None),
        (Fail("never", error_class="auth_failure"), "auth_failure", "Fail", False, None),
        (InvalidOutput("no JSON"), "invalid_output", "InvalidOutput", None, None),
        (ValueError("wrong"), "error", "ValueError", None, None),
        (SystemExit(3), "error", "SystemExit", None, None),
        (KeyboardInterrupt(), "error", "KeyboardInterrupt", None, None),
        (MemoryError(), "out_of_memory", "MemoryError", None, None),
        (HandlerMustStop("for no reason"), "error", "Stopped", None, None),
        (Suspended(["no id"]), "invalid_wait", "Suspended", False, None),
    ],
)
def test_whatever_a_handler_raises_becomes_a_failure(
    context: RunContext,
    *,
    error: BaseException,
    error_class: str,
    error_type: str,
    retryable: bool | None,
    wait: float | None,
) -> None:
    result = result_of(raised_by(error), RUN, context)

    assert isinstance(result, Raised)
    assert (result.error_class, result.error_type) == (error_class, error_type)
    assert (result.retryable, result.wait_seconds) == (retryable, wait)
    assert result.message


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (KeyError("text"), "KeyError: 'text'"),
        (ValueError("wrong"), "ValueError: wrong"),
        (ValueError(), "ValueError"),
        (OSError("OSError, again"), "OSError, again"),
        (Fail("never"), "never"),
        (InvalidOutput("no JSON"), "no JSON"),
    ],
)
def test_a_message_begins_with_the_exception_class_unless_it_has_an_error_class(
    context: RunContext, error: Exception, expected: str
) -> None:
    result = result_of(raised_by(error), RUN, context)

    assert isinstance(result, Raised)
    assert result.message == expected


def test_a_failure_has_a_traceback_without_passwords(context: RunContext) -> None:
    result = result_of(raised_by(OSError("redis://app:hunter2@cache:6379 is away")), RUN, context)

    assert isinstance(result, Raised)
    assert "in handler" in result.detail
    assert "in raised_by" not in result.detail
    assert "hunter2" not in result.message + result.detail


def test_an_exception_that_cannot_be_formatted_is_still_a_failure(context: RunContext) -> None:
    class Broken(Exception):
        error_class = 7

        def __str__(self) -> str:
            raise RuntimeError("cannot even be shown")

    result = result_of(raised_by(Broken()), RUN, context)

    assert isinstance(result, Raised)
    assert (result.error_class, result.message) == ("error", "Broken")


def test_costs_are_recorded_with_outputs_and_failures(context: RunContext) -> None:
    context.cost(0.25, input_tokens=10)
    context.cost(0.5, input_tokens=5, output_tokens=2)

    returned = result_of(outcome_of(1, None, None), RUN, context)
    failed = result_of(raised_by(ValueError("after all")), RUN, context)

    for result in (returned, failed):
        assert isinstance(result, Returned | Raised)
        assert (result.cost_usd, result.tokens) == (0.75, {"input": 15, "output": 2})


def test_an_output_may_contain_a_summary_and_changed_files(context: RunContext) -> None:
    output = {"summary": "done", "files_changed": ["a.py", 3], "more": (1, 2)}

    result = result_of(outcome_of(output, None, None), RUN, context)

    assert isinstance(result, Returned)
    assert (result.summary, result.files_changed) == ("done", ("a.py",))
    assert result.output == {"summary": "done", "files_changed": ["a.py", 3], "more": [1, 2]}


@pytest.mark.parametrize(
    "output",
    [{1, 2}, object(), float("nan"), "\ud800", "nul \x00", {"deep": ["\x00"]}],
    ids=["set", "object", "nan", "surrogate", "nul", "nul inside"],
)
def test_an_output_that_cannot_be_stored_is_an_invalid_output(
    context: RunContext, output: object
) -> None:
    result = result_of(outcome_of(output, None, None), RUN, context)

    assert isinstance(result, Raised)
    assert result.error_class == "invalid_output"


def test_an_output_is_stored_up_to_its_last_allowed_byte() -> None:
    fits = "x" * (MAX_OUTPUT_BYTES - 2)

    assert storable(fits) == fits
    with pytest.raises(UnstorableOutput, match="at most"):
        storable(fits + "x")


def _nested(depth: int) -> list[object]:
    output: list[object] = []
    for _ in range(depth - 1):
        output = [output]
    return output


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 300, 900, 100_000])
def test_an_output_that_is_nested_too_deeply_is_refused(depth: int) -> None:
    deepest = _nested(MAX_DEPTH)

    assert storable(deepest) == deepest
    with pytest.raises(UnstorableOutput):
        storable(_nested(depth))


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**4000])
def test_a_number_beyond_64_bits_is_refused(number: int) -> None:
    with pytest.raises(UnstorableOutput, match="beyond 64 bits"):
        storable({"n": number})


def test_an_escaped_backslash_before_u0000_is_not_a_nul_character() -> None:
    assert storable("\\u0000") == "\\u0000"


@pytest.mark.parametrize(
    ("reason", "after_output", "after_error"),
    [
        (StopReason.CANCELLED, StoppedByCancel(), StoppedByCancel()),
        (StopReason.TIMEOUT, TimedOut(by_plan=False), TimedOut(by_plan=False)),
        (StopReason.SHUTDOWN, Returned("done"), Interrupted("shutdown")),
        (StopReason.WINDOW, Returned("done"), Interrupted("window_closed")),
        (StopReason.LOST, Returned("done"), None),
    ],
)
def test_a_stopped_run_ends_as_stopped_or_with_its_output(
    context: RunContext, reason: StopReason, after_output: Result, after_error: Result | None
) -> None:
    assert result_of(outcome_of("done", None, reason), RUN, context) == after_output
    assert result_of(raised_by(ValueError(), reason), RUN, context) == after_error


def test_a_type_without_handler_is_tried_again_later() -> None:
    assert missing_handler_result() == Deferred(60.0, "no_handler")


def test_a_wait_with_an_error_class_that_is_no_text_can_be_recorded() -> None:
    class Throttled(RateLimited):
        error_class = 429  # type: ignore[assignment]

    result = result_of(raised_by(Throttled(30)), RUN, RunContext(RUN, deadline=0.0))

    assert result == Deferred(30.0, "error")
