"""The description of the API itself: how callers show who they are, and how refusals look."""

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, Field

OPEN = frozenset({"/health", "/ready"})
SCHEMES = {
    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key, or a token."},
}


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


#: What every operation may answer besides its own.
REFUSALS: dict[int | str, dict[str, Any]] = {
    "4XX": _refusal("The request was understood and refused."),
    "5XX": _refusal("The service cannot answer now; Retry-After says when to come back."),
}


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
    for model in (Problem, WrongField):
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schema.pop("$defs", None)
        parts.setdefault("schemas", {})[model.__name__] = schema
    for path, methods in described["paths"].items():
        for operation in methods.values():
            operation["security"] = [] if path in OPEN else [{"key": []}, {"bearer": []}]
    return described
