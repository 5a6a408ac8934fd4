"""Runs a Celery task as a handler: its arguments, its request, its retries and its soft limit.

Celery's own tracer calls the function, so that signals, `on_success`, `on_failure`, `autoretry_for`
and `Ignore` work as in a Celery worker. Only what follows from the end of a run is ours.
"""

import socket
from collections.abc import Callable
from typing import Any

from celery import Celery, states
from celery._state import get_current_app
from celery.app.trace import build_tracer
from celery.exceptions import Reject, Retry, SoftTimeLimitExceeded
from celery.utils.nodenames import default_nodename

from overnight.celery.current_run import CurrentRun, carried_out, current_run
from overnight.celery.soft_limit import soft_limit
from overnight.celery.values import decoded, encoded, exception_line
from overnight.errors import NotFromCelery
from overnight.handlers import control_exceptions
from overnight.handlers.context import Context
from overnight.handlers.control_exceptions import Cancel, ControlException, Fail, error_text

Shape = Any  # the name of a parent, or a list of shapes


class FunctionRaised(Fail):
    """A Celery task raised an exception that it does not want to be retried."""

    def __init__(self, app: Celery, error: Exception, traceback: str) -> None:
        super().__init__(error_text(error))
        self.run_detail = f"{traceback.rstrip()}\n{exception_line(app, error)}"


def handler_of(app: Celery, name: str) -> Callable[[Context], object]:
    """Return the handler that runs the tasks of one Celery task."""
    task: Any = app.tasks[name]
    task.update_state = _report_progress
    tracer: Callable[..., Any] | None = None

    def run(ctx: Context) -> object:
        nonlocal tracer
        if tracer is None:
            tracer = build_tracer(name, task, app=app, eager=True)
        previous = get_current_app()
        # `shared_task` and `current_app` of the program mean its own app.
        app.set_current()
        try:
            return _run(app, task, tracer, ctx)
        finally:
            previous.set_current()

    # Messages about handlers name the user's function.
    function = getattr(task, "_orig_run", task.run)
    run.__module__ = str(getattr(function, "__module__", app.main))
    run.__qualname__ = str(getattr(function, "__qualname__", name))
    return run


def _report_progress(task_id: Any = None, state: Any = None, meta: Any = None, **_: Any) -> None:
    """Report what `self.update_state` says as the progress of the run."""
    run = current_run()
    if run is None or task_id not in {None, run.context.task_id}:
        raise NotFromCelery("update_state() of another task", "report the progress in its own run")
    values = encoded(meta, "the state") if isinstance(meta, dict) else {}
    given = {key: each for key, each in values.items() if key not in {"fraction", "message"}}
    run.context.progress(_fraction(values.get("current"), values.get("total")), state, **given)


def _fraction(current: Any, total: Any) -> float | None:
    if not isinstance(current, (int, float)) or not isinstance(total, (int, float)) or not total:
        return None
    return min(max(current / total, 0.0), 1.0)


def _run(app: Celery, task: Any, tracer: Callable[..., Any], ctx: Context) -> object:
    args, kwargs = _arguments(ctx)
    run = CurrentRun(ctx, args, kwargs)
    try:
        with carried_out(run), soft_limit(ctx.payload.get("soft_time_limit")):
            traced = tracer(ctx.task_id, args, kwargs, _request(task, ctx))
    except SoftTimeLimitExceeded as over:
        # The time was over in Celery's own code, just before or after the function.
        raise FunctionRaised(app, over, "") from over
    state = states.SUCCESS if traced.info is None else traced.info.state
    value = traced.retval
    error = _exception(value)
    if run.retry_after is not None:
        raise control_exceptions.Retry(_reason(error), after=run.retry_after)
    if state == states.SUCCESS:
        return encoded(value, "a result")
    if isinstance(error, ControlException):
        raise error
    if state in {states.IGNORED, states.REJECTED}:
        raise _given_up(state, traced.info.retval)
    raise FunctionRaised(app, error, str(getattr(value, "traceback", "")))


def _arguments(ctx: Context) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments: the results of the parents first, as Celery's canvas passes them."""
    args = decoded(ctx.payload.get("args", []))
    parents = ctx.payload.get("parents")
    if parents is not None:
        args = [_result(parents, ctx), *args]
    return args, decoded(ctx.payload.get("kwargs", {}))


def _result(shape: Shape, ctx: Context) -> Any:
    if isinstance(shape, str):
        return decoded(ctx.inputs[shape])
    return [_result(each, ctx) for each in shape]


def _request(task: Any, ctx: Context) -> dict[str, Any]:
    """Return what `self.request` shows."""
    return {
        "id": ctx.task_id,
        "task": task.name,
        "root_id": ctx.task_id,
        "retries": ctx.attempt - 1,
        "is_eager": False,
        "hostname": default_nodename(socket.gethostname()),
        "headers": decoded(ctx.payload.get("headers")),
        "timelimit": [task.time_limit, ctx.payload.get("soft_time_limit")],
        "delivery_info": {"redelivered": ctx.epoch > 1},
    }


def _exception(value: Any) -> Any:
    """Return the exception of a run; Celery wraps it together with the text of its traceback."""
    error = getattr(value, "exception", value)
    return error if isinstance(error, Retry) else getattr(error, "exc", error)


def _reason(error: Any) -> str:
    cause = error.exc if isinstance(error, Retry) and error.exc is not None else error
    return error_text(cause) if isinstance(cause, BaseException) else ""


def _given_up(state: str, error: object) -> Exception:
    """Return what follows from `Ignore` and `Reject`: a task that is cancelled, or runs again."""
    if isinstance(error, Reject):
        reason, is_requeued = error.args
        if isinstance(reason, Exception):
            return Fail(error_text(reason))
        if is_requeued:
            return control_exceptions.Snooze(0, "the task rejected its message")
    return Cancel(f"the task ended as {state}")
