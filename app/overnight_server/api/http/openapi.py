"""The description of the API itself: how callers show who they are, and how refusals look."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, Field
from starlette.routing import compile_path

OPEN = frozenset({"/health", "/ready"})
SCHEMES = {
    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key, or a token."},
    "claim": {
        "type": "http",
        "scheme": "bearer",
        "description": "The token of one claim, which the claim was answered with.",
    },
}
RUNS = "runs"
#: What a path names, for those who read the description.
NAMED = {
    "agent_id": "The agent's id, as it was answered.",
    "artifact_id": "The artifact's id, as it was answered.",
    "bulk_id": "The bulk operation's id, as it was answered.",
    "dag_id": "The graph's id, as it was answered.",
    "key_id": "The key's id: the part of the key that is no secret.",
    "task_id": "The task's id, as it was answered.",
    "trigger_id": "The trigger's id, as it was answered.",
    "user_id": "The user's id or name.",
    "worker_id": "The worker's name, or as much of its beginning as no other has.",
}
#: Of every schema that has none beside its fields, one example; true answers of a real service.
EXAMPLES = Path(__file__).with_name("openapi_examples.json")


class WrongField(BaseModel):
    """One field at fault."""

    field: str = Field(description="Its name.")
    message: str = Field(description="What is wrong with it.")
    legal: str = Field("", description="What would do.")


class Problem(BaseModel):
    """A refusal; nothing was changed."""

    type: str = Field(description="A name for the kind of problem.")
    title: str = Field(description="The kind in words.")
    status: int = Field(description="The status of the answer.")
    detail: str = Field(description="What is wrong, for people.")
    code: str = Field(description="What is wrong, for programs.")
    errors: list[WrongField] = Field(default_factory=list, description="The fields at fault.")


def _refusal(description: str) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Problem"}
    return {"description": description, "content": {"application/problem+json": {"schema": schema}}}


def _header(description: str) -> dict[str, Any]:
    return {"description": description, "schema": {"type": "string"}}


#: What every operation may answer besides its own.
REFUSALS: dict[int | str, dict[str, Any]] = {
    "4XX": _refusal("The request was understood and refused."),
    "5XX": _refusal("The service cannot answer now; Retry-After says when to come back."),
}
REFUSALS["4XX"]["headers"] = {
    "RateLimit": _header("How many requests are left, and in how many seconds there are more."),
    "RateLimit-Policy": _header("How many requests there may be in how many seconds."),
    "Allow": _header("With 405: the methods that the path knows."),
    "Retry-After": _header("With 429: in how many seconds to come back."),
    "WWW-Authenticate": _header("With 401: how to show who one is."),
}
REFUSALS["5XX"]["headers"] = {"Retry-After": _header("In how many seconds to come back.")}


def again(model: type[BaseModel], description: str) -> dict[int | str, dict[str, Any]]:
    """Describe the 200 of a create that has happened before."""
    return {200: {"model": model, "description": description}}


#: Every app of a process has the same routes, and describing them takes half a second.
_kept: dict[str, Any] = {}


class DescribedApi(FastAPI):
    """An app that describes, beside its operations, who may call them and how it refuses."""

    def openapi(self) -> dict[str, Any]:
        """Return the description, which the first app of a process makes for all."""
        if not _kept:
            _kept.update(_completed(super().openapi()))
        return _kept


def _completed(described: dict[str, Any]) -> dict[str, Any]:
    parts = described.setdefault("components", {})
    parts["securitySchemes"] = SCHEMES
    schemas = parts.setdefault("schemas", {})
    for model in (Problem, WrongField):
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schema.pop("$defs", None)
        schemas[model.__name__] = schema
    for name, example in json.loads(EXAMPLES.read_text(encoding="utf-8")).items():
        if name in schemas:
            schemas[name].setdefault("examples", [example])
    for path, methods in described["paths"].items():
        for operation in methods.values():
            operation["security"] = [] if path in OPEN else _keys(operation)
            for parameter in operation.get("parameters", ()):
                parameter["schema"] = _without_null(parameter["schema"])
                if parameter["in"] == "path":
                    parameter.setdefault("description", NAMED[parameter["name"]])
            for content in _contents(operation):
                shown = _shown(content["schema"], schemas)
                if shown is not None:
                    content.setdefault("example", shown)
    return described


def methods_of(api: FastAPI, path: str) -> set[str]:
    """Return every method that a path of the app knows, whichever of its routes has it."""
    return {method.upper() for one in _described(api, path) for method in one}


def parameters_of(api: FastAPI, path: str, method: str) -> dict[str, dict[str, Any]]:
    """Return what may stand beside the body of a request, each with its schema, by name."""
    operations = [one[method.lower()] for one in _described(api, path) if method.lower() in one]
    return {
        parameter["name"]: parameter["schema"]
        for operation in operations
        for parameter in operation.get("parameters", ())
    }


def query_of(api: FastAPI, path: str, method: str) -> list[str] | None:
    """Return the names that the query of a request may use; None if it is not described."""
    operations = [one[method.lower()] for one in _described(api, path) if method.lower() in one]
    if not operations:
        return None
    return [
        parameter["name"]
        for operation in operations
        for parameter in operation.get("parameters", ())
        if parameter["in"] == "query"
    ]


def _described(api: FastAPI, path: str) -> list[dict[str, Any]]:
    """Return the operations, by method, of every template that a path fits."""
    described = api.openapi()["paths"]
    # A path that is described by its own name is no id of anything.
    if path in described:
        return [described[path]]
    return [one for name, one in described.items() if _pattern(name).match(path)]


@cache
def _pattern(template: str) -> re.Pattern[str]:
    return compile_path(template)[0]


def _keys(operation: dict[str, Any]) -> list[dict[str, list[str]]]:
    """Tell what opens an operation: those of runs a claim's token, all others a key."""
    return [{"claim": []}] if RUNS in operation.get("tags", ()) else [{"key": []}, {"bearer": []}]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Leave out that a parameter may be null: it may be missing, but no URL says null."""
    real = [one for one in schema.get("anyOf", ()) if one.get("type") != "null"]
    rest = {name: value for name, value in schema.items() if name != "anyOf"}
    return {**rest, **real[0]} if len(real) == 1 else schema


def _contents(operation: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what an operation takes and answers, each kind of content by itself."""
    bodies = [operation.get("requestBody", {}), *operation["responses"].values()]
    return [content for body in bodies for content in body.get("content", {}).values()]


def _shown(schema: dict[str, Any], schemas: dict[str, Any]) -> Any:  # noqa: ANN401 - any JSON
    """Make the example of a whole body from those of what it is made of, if they have any."""
    if "$ref" in schema:
        return next(iter(schemas[schema["$ref"].rpartition("/")[2]].get("examples", ())), None)
    if "anyOf" in schema:
        return _shown(schema["anyOf"][0], schemas)
    if "items" in schema:
        return [_shown(schema["items"], schemas)]
    return None
