"""Calls a handler: plain or `async`, with its payload checked before and its output after.

Workers, pull agents and `overnight.testing` call handlers only through `invoke`.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from pydantic import BaseModel, ValidationError

from overnight.handlers.context import Context
from overnight.handlers.control_exceptions import InvalidInput, InvalidOutput
from overnight.handlers.registry import Handler
from overnight.models.field_errors import field_messages

# These stops cancel an async handler at once. For the others (shutdown, window_closed) it may use
# its grace to return an output, which counts.
CANCELLING = frozenset({"cancelled", "timeout", "budget", "lost"})


def invoke(handler: Handler, context: Context) -> object:
    """Call the handler and return its output; its exceptions are not caught.

    Raises InvalidInput if the payload does not fit the model that the handler declares, and
    InvalidOutput if its output does not fit.
    """
    arguments: list[Any] = [context]
    if handler.payload_model is not None:
        arguments.append(_payload(handler.payload_model, context.payload))
    returned = handler.function(*arguments)
    if isinstance(returned, Awaitable):
        returned = _run_until_complete(returned, context)
    return _output(handler.output_model, returned)


def _payload(model: type[BaseModel], payload: dict[str, Any]) -> BaseModel:
    try:
        return model.model_validate_json(json.dumps(payload))
    except ValidationError as error:
        # Without its cause, which shows the values: one of them may be a secret.
        raise InvalidInput(field_messages(model, error, inside="payload")) from None


def _output(model: type[BaseModel] | None, output: object) -> object:
    if model is not None and not isinstance(output, model):
        try:
            output = model.model_validate(output)
        except ValidationError as error:
            raise InvalidOutput(field_messages(model, error, inside="output")) from None
    if isinstance(output, BaseModel):
        return output.model_dump(mode="json", by_alias=True)
    return output


def _run_until_complete(handler_call: Awaitable[object], context: Context) -> object:
    """Run an async handler in an event loop of its own; its unfinished tasks end with it."""
    with asyncio.Runner() as runner:
        return runner.run(_cancel_on_stop(handler_call, context))


async def _cancel_on_stop(handler_call: Awaitable[object], context: Context) -> object:
    cancel = _cancel_once(asyncio.get_running_loop(), asyncio.current_task())
    context.on_stop(cancel)
    try:
        if context.stop_reason is not None:
            # The stop was requested before `on_stop`.
            cancel(context.stop_reason)
        return await handler_call
    finally:
        context.on_stop(None)


def _cancel_once(
    loop: asyncio.AbstractEventLoop, task: "asyncio.Task[object] | None"
) -> Callable[[str], None]:
    """Return a function for another thread that cancels the task, for the first such reason.

    A second cancel would end the clean-up that the first one began.
    """
    is_cancelled = False

    def cancel(reason: str) -> None:
        nonlocal is_cancelled
        if reason not in CANCELLING or is_cancelled or task is None:
            return
        is_cancelled = True
        # The loop may have been closed just now.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(task.cancel)

    return cancel
