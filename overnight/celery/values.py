"""Arguments, results and exceptions of Celery tasks as JSON, as Celery's own JSON has them.

Dates, times, decimals, UUIDs and bytes are marked by Celery's encoder and come back as they were.
"""

import json
from typing import Any, cast

from celery import Celery
from kombu.exceptions import EncodeError
from kombu.utils import json as celery_json

from overnight.errors import NotFromCelery

# The line of an attempt's detail from which a handle builds the exception again.
EXCEPTION_LINE = "celery exception: "


def encoded(value: Any, what: str) -> Any:
    """Return the value as plain JSON values; raise NotFromCelery if JSON cannot hold it."""
    try:
        return json.loads(celery_json.dumps(value))
    except (TypeError, ValueError, RecursionError, EncodeError) as error:
        raise NotFromCelery(
            f"{what} of the type {type(value).__name__}",
            f"pass what JSON can hold, such as the id of a row ({error})",
        ) from error


def decoded(value: Any) -> Any:
    """Return what `encoded` was given."""
    return celery_json.loads(json.dumps(value))


def exception_line(app: Celery, error: Exception) -> str:
    """Return one line that describes an exception as Celery's result backends do."""
    described = app.backend.prepare_exception(error, "json")
    return EXCEPTION_LINE + celery_json.dumps(described)


def exception_from(app: Celery, detail: str) -> BaseException | None:
    """Return the exception that a detail of an attempt describes; None if it describes none."""
    _, found, described = detail.rpartition(EXCEPTION_LINE)
    if not found:
        return None
    try:
        error = app.backend.exception_to_python(celery_json.loads(described))
    except ValueError:
        return None
    return cast("BaseException", error) if isinstance(error, BaseException) else None
