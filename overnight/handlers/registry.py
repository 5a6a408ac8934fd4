"""The registry of handlers: which Python function runs which type of task."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from overnight.errors import DuplicateHandler
from overnight.handlers.context import Context

HandlerFunction = Callable[[Context], object]
F = TypeVar("F", bound=HandlerFunction)


@dataclass(frozen=True)
class Handler:
    """A registered function, and the capabilities that a worker with it offers."""

    type: str
    function: HandlerFunction
    capabilities: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The full name of the function, for messages."""
        return f"{self.function.__module__}.{self.function.__qualname__}"


_handlers: dict[str, Handler] = {}


def handler(type: str, *, capabilities: Iterable[str] = ()) -> Callable[[F], F]:  # noqa: A002 - the name on the wire
    """Register the decorated function for tasks of this type, and return it unchanged.

    The function takes one `Context` and returns a JSON value. Raises TypeError without a type and
    for a function with another signature, and DuplicateHandler if another function has the type
    already.
    """
    if not isinstance(type, str):
        name = getattr(type, "__name__", repr(type))
        raise TypeError(f'@handler needs the type of task: write @handler("{name}")')
    if not type or type != type.strip():
        raise ValueError(f"a handler's type is a name such as 'echo', not {type!r}")

    def register(function: F) -> F:
        _check_signature(function)
        _add(Handler(type, function, tuple(sorted(set(capabilities)))))
        return function

    return register


def registered() -> Mapping[str, Handler]:
    """Return all registered handlers by type, as a read-only view."""
    return MappingProxyType(_handlers)


def capabilities_offered() -> tuple[str, ...]:
    """Return the capabilities of all registered handlers, sorted."""
    return tuple(sorted({name for each in _handlers.values() for name in each.capabilities}))


def _add(new: Handler) -> None:
    existing = _handlers.get(new.type)
    # The same name again means that the module was loaded twice (a reload, a test).
    if existing is not None and existing.name != new.name:
        raise DuplicateHandler(new.type, existing.name, new.name)
    _handlers[new.type] = new


def _check_signature(function: Callable[..., object]) -> None:
    name = getattr(function, "__qualname__", repr(function))
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{name} is async; a handler is a plain function (call asyncio.run in it)")
    try:
        inspect.signature(function).bind(object())
    except TypeError as error:
        raise TypeError(f"{name} must accept one argument, the context: {error}") from error
