"""How one method serves both clients: written as a script, answered in the client's own way.

    class Tasks(Group[D]):
        @operation
        def get(self, task_id: str) -> Call[Task]:
            return calls.get_task(task_id)

`Client(…).tasks.get("…")` is then a `Task`, and `AsyncClient(…).tasks.get("…")` a coroutine that
gives one; type checkers see the difference. A further group is a class like this one and a line
in `overnight/client/client.py`.
"""

import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from overnight.client.drivers import Async, Sync
from overnight.client.scripts import Script, Series

P = ParamSpec("P")
T = TypeVar("T")
D = TypeVar("D", bound=Sync | Async)


class Group(Generic[D]):
    """Operations that belong together, and the driver that carries them out."""

    def __init__(self, driver: D) -> None:
        self.driver = driver


class operation(Generic[P, T]):  # noqa: N801 - used as a decorator, like property
    """A method that gives one result; its body returns the script of what to do."""

    def __init__(self, body: Callable[Concatenate[Any, P], Script[T]]) -> None:
        self.body = body
        self.__doc__ = body.__doc__

    @overload
    def __get__(self, group: Group[Sync], owner: type[Any]) -> Callable[P, T]: ...
    @overload
    def __get__(
        self, group: Group[Async], owner: type[Any]
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, group: None, owner: type[Any]) -> Self: ...
    def __get__(self, group: Any, owner: type[Any]) -> Any:
        """Bind to a group, whose driver plays the script when the method is called."""
        return self if group is None else _bound(self.body, group, group.driver.run)


class series(Generic[P, T]):  # noqa: N801 - used as a decorator, like property
    """A method that gives many things, one by one: for `for`, or for `async for`.

    Its body is a script that hands each of them over as an `Item`.
    """

    def __init__(self, body: Callable[Concatenate[Any, P], Series[T]]) -> None:
        self.body = body
        self.__doc__ = body.__doc__

    @overload
    def __get__(self, group: Group[Sync], owner: type[Any]) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, group: Group[Async], owner: type[Any]) -> Callable[P, AsyncIterator[T]]: ...
    @overload
    def __get__(self, group: None, owner: type[Any]) -> Self: ...
    def __get__(self, group: Any, owner: type[Any]) -> Any:
        """Bind to a group, whose driver plays the script as its items are asked for."""
        return self if group is None else _bound(self.body, group, group.driver.iterate)


def _bound(
    body: Callable[..., object], group: Group[Any], play: Callable[[Any], object]
) -> Callable[..., object]:
    method = MethodType(body, group)

    # Wraps the bound method, so that help() shows the signature without `self`.
    @functools.wraps(method)
    def call(*args: object, **options: object) -> object:
        return play(method(*args, **options))

    return call
