"""Error responses: every refused request and every failure as `application/problem+json`."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from sqlalchemy.exc import DataError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolExhausted
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from overnight import errors
from overnight.models.field_errors import without_consequences
from overnight_server.api.http.authentication import NotAnAdmin
from overnight_server.api.http.dependencies import Dependencies
from overnight_server.api.http.middleware import SECURITY_HEADERS
from overnight_server.api.http.openapi import methods_of, parameters_of
from overnight_server.control.claim_tokens import ClaimOver
from overnight_server.domain.request_faults import describe_fault
from overnight_server.store.db import DatabaseUnreachable, is_transient
from overnight_server.telemetry import LogEvent

MEDIA_TYPE = "application/problem+json"

# Titles that web pages show unchanged; all others are made from the code.
TITLE_OF = {errors.QueueFull.code: "Queue is full. Please try again later."}
CODE_OF = {413: "BODY_TOO_LARGE"}


def problem(
    status: int,
    code: str,
    detail: str,
    *,
    wrong: Sequence[Mapping[str, object]] = (),
    details: Mapping[str, object] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return one problem response; `wrong` lists the wrong fields, `details` adds members."""
    body: dict[str, object] = {
        "type": f"urn:overnight:problem:{code.lower().replace('_', '-')}",
        "title": TITLE_OF.get(code, code.replace("_", " ").capitalize()),
        "status": status,
        "detail": detail,
        "code": code,
    }
    if wrong:
        body["errors"] = list(wrong)
    return JSONResponse(
        {**(details or {}), **body},
        status_code=status,
        headers={**SECURITY_HEADERS, **(headers or {})},
        media_type=MEDIA_TYPE,
    )


def refused(_request: Request, error: Exception) -> Response:
    """Return the response to a request that the service refuses."""
    if not isinstance(error, errors.Refused):
        raise error
    headers = {} if error.retry_after is None else {"Retry-After": f"{error.retry_after:.0f}"}
    if isinstance(error, errors.Unauthenticated):
        headers["WWW-Authenticate"] = 'Bearer realm="overnight"'
    if isinstance(error, errors.TooManyRequests):
        headers |= error.headers
    return problem(
        error.status,
        error.code,
        error.message,
        wrong=[asdict(field) for field in error.fields],
        details=error.details,
        headers=headers,
    )


def invalid(request: Request, error: Exception) -> Response:
    """Return the response to a malformed request: 422 for fields of a body, else 400."""
    if not isinstance(error, RequestValidationError):
        raise error
    body = getattr(request.scope.get("endpoint"), "__annotations__", {}).get("body", object)
    parameters = parameters_of(request.app, request.url.path, request.method)
    wrong = [
        describe_fault(fault, body, parameters) for fault in without_consequences(error.errors())
    ]
    is_in_body = all(fault["loc"][0] == "body" for fault in error.errors())
    is_unreadable = any(fault["type"] == "json_invalid" for fault in error.errors())
    is_wrong_field = is_in_body and not is_unreadable
    return problem(
        HTTPStatus.UNPROCESSABLE_ENTITY if is_wrong_field else HTTPStatus.BAD_REQUEST,
        errors.InvalidRequest.code,
        "; ".join(str(errors.FieldError(**item)) for item in wrong),
        wrong=wrong,
    )


def claim_over(request: Request, _error: Exception) -> Response:
    """Return 401 for the token of a claim that has ended, as for any token that is not valid."""
    return refused(request, errors.Unauthenticated())


def not_an_admin(request: Request, _error: Exception) -> Response:
    """Return 404, so that only admins learn that the route exists."""
    return framework_error(request, HTTPException(HTTPStatus.NOT_FOUND))


def framework_error(request: Request, error: Exception) -> Response:
    """Return the response to what the framework refuses: unknown paths, methods and bad bodies."""
    if not isinstance(error, HTTPException):
        raise error
    if error.status_code == HTTPStatus.BAD_REQUEST:
        wrong = errors.InvalidRequest("body", "cannot be read as JSON", legal="one JSON object")
        return refused(request, wrong)
    # Versions of Python name 413 differently; the code must be the same.
    code = CODE_OF.get(error.status_code, HTTPStatus(error.status_code).name)
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        # The framework would list only the methods of the first route of this path.
        allowed = ", ".join(sorted(methods_of(request.app, request.url.path)))
        detail = f"this path does not support the method {request.method}; legal: {allowed}"
        return problem(error.status_code, code, detail, headers={"Allow": allowed})
    return problem(error.status_code, code, error.detail, headers=error.headers)


def database_unavailable(request: Request, error: Exception) -> Response:
    """Return 503 while Postgres cannot be reached or is too busy; nothing was written."""
    _emit(request, LogEvent.DATABASE_UNREACHABLE, error=str(error).strip())
    return refused(request, errors.Unavailable())


def database_error(request: Request, error: Exception) -> Response:
    """Return the response to an error of Postgres: 400 for a bad value, 503 if it may pass."""
    if isinstance(error, DataError):
        # Values that are known to fail are refused earlier, with the name of their field.
        return problem(
            400, errors.InvalidRequest.code, "the database cannot store a value of this request"
        )
    if isinstance(error, DBAPIError) and is_transient(error):
        return database_unavailable(request, error)
    return unexpected(request, error)


class AnswerWhenStopped:
    """Responds 503 to a request that still runs when the process must end.

    uvicorn cancels such requests, and would respond 500. A write may have happened: a client
    repeats it with the same idempotency key.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        has_started = False

        async def send_and_note(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        except asyncio.CancelledError:
            if has_started or scope["type"] != "http":
                raise
            response = refused(Request(scope), errors.Overloaded("the service stops"))
            await response(scope, receive, send)


def unexpected(request: Request, error: Exception) -> Response:
    """Log an unexpected error and return 500 without its details."""
    _emit(
        request,
        LogEvent.REQUEST_FAILED,
        method=request.method,
        path=request.url.path,
        error=f"{type(error).__name__}: {error}",
    )
    return problem(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "INTERNAL_ERROR",
        "the service failed unexpectedly; the error was logged",
    )


def _emit(request: Request, event: LogEvent, **fields: object) -> None:
    """Write a log event, unless there were too many of its kind."""
    deps: Dependencies = request.app.state.dependencies
    deps.log_throttle.emit(event, **fields)


def install(app: FastAPI) -> None:
    """Register the handlers that turn every error of the app into a problem response."""
    for kind, handler in (
        (errors.Refused, refused),
        (RequestValidationError, invalid),
        (ClaimOver, claim_over),
        (NotAnAdmin, not_an_admin),
        (HTTPException, framework_error),
        (DatabaseUnreachable, database_unavailable),
        (PoolExhausted, database_unavailable),
        (DBAPIError, database_error),
        (Exception, unexpected),
    ):
        app.add_exception_handler(kind, handler)
