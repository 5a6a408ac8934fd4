"""The registry of handlers: which Python function runs which type of task."""

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import BaseModel

from overnight.errors import DuplicateHandler

# Takes a Context, or a Context and a payload; returns a JSON value, a pydantic model, or an
# awaitable of one.
HandlerFunction = Callable[..., object]
Model = type[BaseModel]
F = TypeVar("F", bound=HandlerFunction)


@dataclass(frozen=True)
class Handler:
    """A registered function, and the capabilities that a worker with it offers.

    `payload_model` is the pydantic model of the function's second parameter, and `output_model`
    that of its return value; None if the function declares none.
    """

    type: str
    function: HandlerFunction
    capabilities: tuple[str, ...] = ()
    payload_model: Model | None = None
    output_model: Model | None = None

    @property
    def name(self) -> str:
        """The full name of the function, for messages."""
        return f"{self.function.__module__}.{self.function.__qualname__}"


_handlers: dict[str, Handler] = {}
_sources: list[Callable[[], None]] = []


def handler(type: str, *, capabilities: Iterable[str] = ()) -> Callable[[F], F]:  # noqa: A002 - the name on the wire
    """Register the decorated function for tasks of this type, and return it unchanged.

    The function, plain or `async`, takes one `Context` and returns a JSON value. It may take the
    payload as a second parameter and return its output as pydantic models, which its annotations
    name. Raises TypeError without a type and for a function with another signature, and
    DuplicateHandler if another function has the type already.
    """
    if not isinstance(type, str):
        name = getattr(type, "__name__", repr(type))
        raise TypeError(f'@handler needs the type of task: write @handler("{name}")')
    if not type or type != type.strip():
        raise ValueError(f"a handler's type is a name such as 'echo', not {type!r}")

    def register(function: F) -> F:
        _add(describe(type, function, capabilities))
        return function

    return register


def describe(
    type: str,  # noqa: A002 - the name on the wire
    function: HandlerFunction,
    capabilities: Iterable[str] = (),
) -> Handler:
    """Return the handler that a function is, unregistered; raise TypeError for a wrong one."""
    payload_parameter = _payload_parameter(function)
    return Handler(
        type,
        function,
        tuple(sorted(set(capabilities))),
        payload_model=_payload_model(function, payload_parameter) if payload_parameter else None,
        output_model=_model(function, "return"),
    )


def add_source(register: Callable[[], None]) -> None:
    """Call a function before the handlers are next read; it registers handlers by itself.

    For libraries that know their handlers only when all modules of a program are imported.
    """
    _sources.append(register)


def registered() -> Mapping[str, Handler]:
    """Return all registered handlers by type, as a read-only view."""
    while _sources:
        _sources.pop()()
    return MappingProxyType(_handlers)


def capabilities_offered() -> tuple[str, ...]:
    """Return the capabilities of all registered handlers, sorted."""
    return tuple(sorted({name for each in registered().values() for name in each.capabilities}))


def _add(new: Handler) -> None:
    existing = _handlers.get(new.type)
    # The same name again means that the module was loaded twice (a reload, a test).
    if existing is not None and existing.name != new.name:
        raise DuplicateHandler(new.type, existing.name, new.name)
    _handlers[new.type] = new


def _payload_parameter(function: HandlerFunction) -> str | None:
    """Return the name of the parameter for the payload, None if there is no such parameter."""
    name = _name(function)
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise TypeError(f"{name} yields values; a handler returns one value")
    signature = inspect.signature(function)
    required = [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in {parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD}
    ]
    payload = required[1] if len(required) > 1 else None
    try:
        signature.bind(*[object()] * (2 if payload else 1))
    except TypeError as error:
        raise TypeError(
            f"{name} must accept the context, and if it wants one the payload: {error}"
        ) from error
    return payload


def _payload_model(function: HandlerFunction, parameter: str) -> Model:
    model = _model(function, parameter)
    if model is None:
        raise TypeError(
            f"{_name(function)}: annotate {parameter} with a pydantic model, or read ctx.payload"
        )
    return model


def _model(function: HandlerFunction, parameter: str) -> Model | None:
    """Return the pydantic model that an annotation names; None if it names none."""
    try:
        annotation = _annotation(function, parameter)
    except NameError as error:
        raise TypeError(
            f"{_name(function)}: the annotation of {parameter} cannot be read: {error};"
            " import or define the name at the top of the module, not under TYPE_CHECKING"
        ) from error
    return annotation if _is_model(annotation) else None


def _annotation(function: HandlerFunction, parameter: str) -> Any:  # noqa: ANN401 - any annotation
    annotation = getattr(function, "__annotations__", {}).get(parameter)
    if not isinstance(annotation, str):
        return annotation
    module = sys.modules.get(function.__module__)
    # The text is the source of the handler's own module.
    return eval(annotation, vars(module) if module else {})  # noqa: S307


def _is_model(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _name(function: HandlerFunction) -> str:
    return getattr(function, "__qualname__", repr(function))
