"""The OpenAPI document: authentication, error responses and examples added to FastAPI's."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, Field
from starlette.routing import compile_path

PUBLIC_PATHS = frozenset({"/health", "/ready"})
#: The routes for admins; everybody else gets the response of a path that does not exist.
ADMIN_PATHS = "/api/v1/admin/"
SCHEMES = {
    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key or a token."},
    "claim": {
        "type": "http",
        "scheme": "bearer",
        "description": "The token of one claim, from the response to the claim.",
    },
}
# The tag of the operations that need the token of a claim.
RUNS = "runs"
#: The descriptions of path parameters.
PATH_PARAMETERS = {
    "agent_id": "The id of an agent.",
    "artifact_id": "The id of an artifact.",
    "bulk_id": "The id of a bulk operation.",
    "channel": "The name of a notification channel.",
    "dag_id": "The id of a graph.",
    "delivery_id": "The number of a delivery.",
    "day": "The local date on which a night began, such as 2026-11-16, or latest.",
    "finding_id": "The number of a finding of the audit.",
    "hook_id": "The id of a source of webhooks.",
    "key_id": "The id of an API key: the part of the key that is not secret.",
    "notification_id": "The number of a delivery of a notification.",
    "profile": "The name of an agent profile.",
    "row_id": "The number of a row of the inbox.",
    "schedule_id": "The id of a schedule.",
    "rule_id": "The id of an improvement rule.",
    "task_id": "The id of a task.",
    "trigger_id": "The id of a trigger.",
    "user_id": "The id or name of a user.",
    "worker_id": "The id of a worker, or a prefix that no other worker has.",
}
#: One example for each schema that has none beside its fields, from responses of a real service.
EXAMPLES = Path(__file__).with_name("openapi_examples.json")


class WrongField(BaseModel):
    """One wrong field of a request."""

    field: str = Field(description="The name of the field.")
    message: str = Field(description="What is wrong with it.")
    legal: str = Field("", description="Which values are legal.")


class Problem(BaseModel):
    """An error response; nothing was changed."""

    type: str = Field(description="A URN for the kind of error.")
    title: str = Field(description="The kind of error as text.")
    status: int = Field(description="The HTTP status.")
    detail: str = Field(description="What is wrong and what to do, as a sentence.")
    code: str = Field(description="The error code, for programs.")
    errors: list[WrongField] = Field(default_factory=list, description="The wrong fields.")


def _error_response(description: str) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Problem"}
    return {"description": description, "content": {"application/problem+json": {"schema": schema}}}


def _header(description: str) -> dict[str, Any]:
    return {"description": description, "schema": {"type": "string"}}


#: Error responses that every operation may have.
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    "4XX": _error_response("The request was refused; nothing was changed."),
    "5XX": _error_response(
        "The service cannot serve the request now; repeat it after Retry-After seconds."
    ),
}
ERROR_RESPONSES["4XX"]["headers"] = {
    "RateLimit": _header("Requests left, and seconds until the limit is full again."),
    "RateLimit-Policy": _header("The limit: how many requests in how many seconds."),
    "Allow": _header("With 405: the methods that the path supports."),
    "Retry-After": _header("With 429: after how many seconds to repeat the request."),
    "WWW-Authenticate": _header("With 401: how to authenticate."),
}
ERROR_RESPONSES["5XX"]["headers"] = {
    "Retry-After": _header("After how many seconds to repeat the request.")
}


def repeated_response(model: type[BaseModel], description: str) -> dict[int | str, dict[str, Any]]:
    """Return the description of the response 200 to a repeated create."""
    return {200: {"model": model, "description": description}}


#: The document is the same for every app of a process, and building it takes half a second.
_document: dict[str, Any] = {}


class DescribedApi(FastAPI):
    """A FastAPI app whose OpenAPI document includes authentication and error responses."""

    def openapi(self) -> dict[str, Any]:
        """Return the document; the first app of a process builds it."""
        if not _document:
            _document.update(_complete(super().openapi()))
        return _document


def without_admin_paths(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document without the routes for admins and the schemas that only they use."""
    paths = {
        path: operations
        for path, operations in document["paths"].items()
        if not path.startswith(ADMIN_PATHS)
    }
    components = document["components"]
    used: set[str] = set()
    unread = _schema_names(paths)
    while unread:
        used |= unread
        unread = _schema_names([components["schemas"][name] for name in unread]) - used
    schemas = {name: schema for name, schema in components["schemas"].items() if name in used}
    return {**document, "paths": paths, "components": {**components, "schemas": schemas}}


def _schema_names(part: object) -> set[str]:
    """Return the names of the schemas to which a part of the document refers."""
    return set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(part, default=str)))


def _complete(document: dict[str, Any]) -> dict[str, Any]:
    components = document.setdefault("components", {})
    components["securitySchemes"] = SCHEMES
    schemas = components.setdefault("schemas", {})
    for model in (Problem, WrongField):
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schema.pop("$defs", None)
        schemas[model.__name__] = schema
    for name, example in json.loads(EXAMPLES.read_text(encoding="utf-8")).items():
        if name in schemas:
            schemas[name].setdefault("examples", [example])
    for path, methods in document["paths"].items():
        for operation in methods.values():
            operation["security"] = [] if path in PUBLIC_PATHS else _security(operation)
            for parameter in operation.get("parameters", ()):
                parameter["schema"] = _without_null(parameter["schema"])
                if parameter["in"] == "path":
                    parameter.setdefault("description", PATH_PARAMETERS[parameter["name"]])
            for content in _contents(operation):
                example = _example(content["schema"], schemas)
                if example is not None:
                    content.setdefault("example", example)
    return document


def methods_of(api: FastAPI, path: str) -> set[str]:
    """Return every method that any route of a path supports."""
    return {method.upper() for operations in _operations(api, path) for method in operations}


def parameters_of(api: FastAPI, path: str, method: str) -> dict[str, dict[str, Any]]:
    """Return the schemas of the path, query and header parameters of an operation, by name."""
    return {
        parameter["name"]: parameter["schema"]
        for operation in _operations_of_method(api, path, method)
        for parameter in operation.get("parameters", ())
    }


def query_parameter_names(api: FastAPI, path: str, method: str) -> list[str] | None:
    """Return the names of an operation's query parameters; None if there is no such operation."""
    operations = _operations_of_method(api, path, method)
    if not operations:
        return None
    return [
        parameter["name"]
        for operation in operations
        for parameter in operation.get("parameters", ())
        if parameter["in"] == "query"
    ]


def _operations_of_method(api: FastAPI, path: str, method: str) -> list[dict[str, Any]]:
    name = method.lower()
    return [operations[name] for operations in _operations(api, path) if name in operations]


def _operations(api: FastAPI, path: str) -> list[dict[str, Any]]:
    """Return the operations, by method, of every path template that matches a path."""
    paths = api.openapi()["paths"]
    # A path without parameters takes precedence over a template that also matches it.
    if path in paths:
        return [paths[path]]
    return [operations for name, operations in paths.items() if _pattern(name).match(path)]


@cache
def _pattern(template: str) -> re.Pattern[str]:
    return compile_path(template)[0]


def _security(operation: dict[str, Any]) -> list[dict[str, list[str]]]:
    """Return how to authenticate: runs need the token of a claim, all others a key or token."""
    return [{"claim": []}] if RUNS in operation.get("tags", ()) else [{"key": []}, {"bearer": []}]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a parameter without null: a URL omits a parameter instead."""
    real = [branch for branch in schema.get("anyOf", ()) if branch.get("type") != "null"]
    rest = {name: value for name, value in schema.items() if name != "anyOf"}
    return {**rest, **real[0]} if len(real) == 1 else schema


def _contents(operation: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the content of an operation's request body and responses, one per media type."""
    bodies = [operation.get("requestBody", {}), *operation["responses"].values()]
    return [content for body in bodies for content in body.get("content", {}).values()]


def _example(schema: dict[str, Any], schemas: dict[str, Any]) -> Any:  # noqa: ANN401 - any JSON
    """Return an example of a body, made from the examples of its schemas, or None."""
    if "examples" in schema:
        return schema["examples"][0]
    if "$ref" in schema:
        return next(iter(schemas[schema["$ref"].rpartition("/")[2]].get("examples", ())), None)
    if "anyOf" in schema:
        return _example(schema["anyOf"][0], schemas)
    if "items" in schema:
        return [_example(schema["items"], schemas)]
    return None
