"""Decorators that make one method serve both clients.

    class Tasks(Group[D]):
        @operation
        def get(self, task_id: str) -> Call[Task]:
            return read(Task, path("tasks", task_id))

`Client(…).tasks.get("…")` returns a `Task`; `AsyncClient(…).tasks.get("…")` returns a coroutine
of one, and type checkers know the difference. A new group is a class like this one and a line in
`overnight/client/client.py`.
"""

import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from overnight.client.request_plan import ItemSteps, RequestPlan
from overnight.client.transports import AsyncTransport, SyncTransport

P = ParamSpec("P")
T = TypeVar("T")
D = TypeVar("D", bound=SyncTransport | AsyncTransport)


class Group(Generic[D]):
    """Operations on one kind of resource, and the transport that executes them."""

    def __init__(self, transport: D) -> None:
        self.transport = transport


class operation(Generic[P, T]):  # noqa: N801 - used as a decorator, like property
    """A method with one result; its body returns the request plan."""

    def __init__(self, body: Callable[Concatenate[Any, P], RequestPlan[T]]) -> None:
        self.body = body
        self.__doc__ = body.__doc__

    @overload
    def __get__(self, group: Group[SyncTransport], owner: type[Any]) -> Callable[P, T]: ...
    @overload
    def __get__(
        self, group: Group[AsyncTransport], owner: type[Any]
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, group: None, owner: type[Any]) -> Self: ...
    def __get__(self, group: Any, owner: type[Any]) -> Any:
        """Bind to a group, whose transport runs the plan when the method is called."""
        return self if group is None else _bind(self.body, group, group.transport.run)


class iteration(Generic[P, T]):  # noqa: N801 - used as a decorator, like property
    """A method with many results, for `for` or `async for`; its body emits each as an `Emit`."""

    def __init__(self, body: Callable[Concatenate[Any, P], ItemSteps[T]]) -> None:
        self.body = body
        self.__doc__ = body.__doc__

    @overload
    def __get__(
        self, group: Group[SyncTransport], owner: type[Any]
    ) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(
        self, group: Group[AsyncTransport], owner: type[Any]
    ) -> Callable[P, AsyncIterator[T]]: ...
    @overload
    def __get__(self, group: None, owner: type[Any]) -> Self: ...
    def __get__(self, group: Any, owner: type[Any]) -> Any:
        """Bind to a group, whose transport executes the plan as items are consumed."""
        return self if group is None else _bind(self.body, group, group.transport.iterate)


def _bind(
    body: Callable[..., object], group: Group[Any], execute: Callable[[Any], object]
) -> Callable[..., object]:
    method = MethodType(body, group)

    # Wraps the bound method, so that help() shows the signature without `self`.
    @functools.wraps(method)
    def call(*args: object, **options: object) -> object:
        return execute(method(*args, **options))

    return call
