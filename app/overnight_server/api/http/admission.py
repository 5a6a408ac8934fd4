"""Admission: a request is judged by its headers before its body is read.

A route declares who may call it as a parameter, for example `caller: Reader`. The class of the
parameter's dependency is an `Admission`: the route calls `admit` first, then reads the body, and
FastAPI gets the result of `admit` when it fills in the parameter.
"""

from typing import Protocol, TypeVar, runtime_checkable

from fastapi import Request
from fastapi.dependencies.models import Dependant

from overnight_server.api.http.dependencies import Dependencies

T = TypeVar("T")


@runtime_checkable
class Admission(Protocol):
    """Decides whether a request is served, by its headers."""

    async def admit(self, request: Request, deps: Dependencies, cost: int) -> object:
        """Return who sent the request; raise a refusal otherwise.

        `cost` is how many requests of the rate limit it counts as.
        """


def admission_of(dependant: Dependant) -> Admission | None:
    """Return what a route's parameters say about who may call it; None if anybody may."""
    if isinstance(dependant.call, Admission):
        return dependant.call
    for inner in dependant.dependencies:
        if (admission := admission_of(inner)) is not None:
            return admission
    return None


def admitted(request: Request, kind: type[T]) -> T:
    """Return what `admit` has returned for this request."""
    sender = request.state.admitted
    if not isinstance(sender, kind):
        raise TypeError(f"the route admitted {type(sender).__name__}, not {kind.__name__}")
    return sender
