"""Which Python function carries out which type of task."""

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
    """A registered function, and what a worker that has it can be asked for."""

    type: str
    function: HandlerFunction
    capabilities: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Where the function stands, for messages."""
        return f"{self.function.__module__}.{self.function.__qualname__}"


_handlers: dict[str, Handler] = {}


def handler(type: str, *, capabilities: Iterable[str] = ()) -> Callable[[F], F]:  # noqa: A002 - the word the wire uses
    """Register the decorated function for tasks of this type; it is returned unchanged.

    The function takes one `Context` and returns what JSON can hold.
    """
    if not type or type != type.strip():
        raise ValueError(f"a handler's type is a word such as 'echo', not {type!r}")

    def register(function: F) -> F:
        _refuse_wrong_shape(function)
        _add(Handler(type, function, tuple(sorted(set(capabilities)))))
        return function

    return register


def registered() -> Mapping[str, Handler]:
    """Return every registered handler by type; a live view that cannot be written to."""
    return MappingProxyType(_handlers)


def capabilities_offered() -> tuple[str, ...]:
    """Return what all registered handlers together can do, sorted."""
    return tuple(sorted({word for known in _handlers.values() for word in known.capabilities}))


def _add(new: Handler) -> None:
    known = _handlers.get(new.type)
    # The same name again is a module loaded twice (a reload, a test), not a rival.
    if known is not None and known.name != new.name:
        raise DuplicateHandler(new.type, known.name, new.name)
    _handlers[new.type] = new


def _refuse_wrong_shape(function: Callable[..., object]) -> None:
    name = getattr(function, "__qualname__", repr(function))
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{name} is async; a handler is a plain function (call asyncio.run in it)")
    try:
        inspect.signature(function).bind(object())
    except TypeError as error:
        raise TypeError(f"{name} must accept one argument, the context: {error}") from error
