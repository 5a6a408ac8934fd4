"""Saying no: every refusal and every fault as one `application/problem+json` body."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from sqlalchemy.exc import DataError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolExhausted
from starlette.exceptions import HTTPException

from overnight import errors
from overnight.models.field_errors import without_consequences
from overnight_server import telemetry
from overnight_server.api.http.authentication import NotAnAdmin
from overnight_server.api.http.middleware import PRIVATE
from overnight_server.api.http.openapi import methods_of, parameters_of
from overnight_server.api.http.validation_errors import explain
from overnight_server.control.claim_tokens import ClaimOver
from overnight_server.store.db import LOCK_TIMEOUT, DatabaseUnreachable, sqlstate

MEDIA_TYPE = "application/problem+json"
STATEMENT_TIMEOUT = "57014"
BUSY = frozenset({LOCK_TIMEOUT, STATEMENT_TIMEOUT})

# Titles that a page shows unchanged; all others are made from the code.
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
    """Write one refusal; `wrong` lists the fields at fault, `details` adds members of its own."""
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
        headers={**PRIVATE, **(headers or {})},
        media_type=MEDIA_TYPE,
    )


def refused(_request: Request, error: Exception) -> Response:
    """Write a refusal of the service as its problem body."""
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
    """Answer a request whose shape is wrong: 422 for a body's fields, 400 for all else."""
    if not isinstance(error, RequestValidationError):
        raise error
    body = getattr(request.scope.get("endpoint"), "__annotations__", {}).get("body", object)
    parameters = parameters_of(request.app, request.url.path, request.method)
    wrong = [explain(fault, body, parameters) for fault in without_consequences(error.errors())]
    in_body = all(fault["loc"][0] == "body" for fault in error.errors())
    unreadable = any(fault["type"] == "json_invalid" for fault in error.errors())
    return problem(
        HTTPStatus.UNPROCESSABLE_ENTITY if in_body and not unreadable else HTTPStatus.BAD_REQUEST,
        errors.InvalidRequest.code,
        "; ".join(str(errors.FieldError(**item)) for item in wrong),
        wrong=wrong,
    )


def claim_over(request: Request, _error: Exception) -> Response:
    """Refuse a token of a claim that is no longer held, as any other token that is not valid."""
    return refused(request, errors.Unauthenticated())


def not_an_admin(request: Request, _error: Exception) -> Response:
    """Answer as if the route were not there, as it is not for this caller."""
    return plain_http(request, HTTPException(HTTPStatus.NOT_FOUND))


def plain_http(request: Request, error: Exception) -> Response:
    """Answer what the framework refuses by itself: unknown paths, wrong methods, bad bodies."""
    if not isinstance(error, HTTPException):
        raise error
    if error.status_code == HTTPStatus.BAD_REQUEST:
        wrong = errors.InvalidRequest("body", "cannot be read as JSON", legal="one JSON object")
        return refused(request, wrong)
    # The name of 413 differs between versions of Python; a code must not.
    code = CODE_OF.get(error.status_code, HTTPStatus(error.status_code).name)
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        # The framework would name the methods of the first route of this path alone.
        allowed = ", ".join(sorted(methods_of(request.app, request.url.path)))
        detail = f"this path knows no such method; legal: {allowed}"
        return problem(error.status_code, code, detail, headers={"Allow": allowed})
    return problem(error.status_code, code, error.detail, headers=error.headers)


def database_down(request: Request, error: Exception) -> Response:
    """Answer while Postgres cannot be asked; what was meant to be written was not."""
    telemetry.emit(telemetry.Event.DATABASE_UNREACHABLE, error=str(error).strip())
    return refused(request, errors.Unavailable())


def database_refused(request: Request, error: Exception) -> Response:
    """Answer an error of Postgres itself: too busy is our matter, a bad value the sender's."""
    if isinstance(error, DataError):
        # Every known case is refused with its field before it comes here.
        return problem(400, errors.InvalidRequest.code, "a value cannot be stored by the database")
    if isinstance(error, DBAPIError) and sqlstate(error) in BUSY:
        return database_down(request, error)
    return unexpected(request, error)


def unexpected(request: Request, error: Exception) -> Response:
    """Answer a fault of ours without telling its inside."""
    telemetry.emit(
        telemetry.Event.REQUEST_FAILED,
        method=request.method,
        path=request.url.path,
        error=f"{type(error).__name__}: {error}",
    )
    return problem(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "INTERNAL_ERROR",
        "an unexpected error; it was logged and nothing more was done",
    )


def install(app: FastAPI) -> None:
    """Make every error of this app leave as a problem."""
    for kind, answer in (
        (errors.Refused, refused),
        (RequestValidationError, invalid),
        (ClaimOver, claim_over),
        (NotAnAdmin, not_an_admin),
        (HTTPException, plain_http),
        (DatabaseUnreachable, database_down),
        (PoolExhausted, database_down),
        (DBAPIError, database_refused),
        (Exception, unexpected),
    ):
        app.add_exception_handler(kind, answer)
