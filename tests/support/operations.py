"""Every operation of the OpenAPI document, ready to be called."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from httpx2 import Response

from tests.support.api_user import ApiUser

PUBLIC = ("/health", "/ready")
ADMIN = "/api/v1/admin/"
FAR_FUTURE = "2031-01-31T07:00:00Z"


@dataclass(frozen=True)
class Operation:
    """One method of one path, with its path parameters and a minimal body."""

    method: str
    path: str
    ids: tuple[str, ...]
    body: object | None
    needs_claim_token: bool = False

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def is_public(self) -> bool:
        """Whether it needs no authentication."""
        return self.path in PUBLIC

    @property
    def is_for_admins(self) -> bool:
        """Whether only admins may call it."""
        return self.path.startswith(ADMIN)

    def call(
        self, api_user: ApiUser, ids: Mapping[str, str] | None = None, **options: Any
    ) -> Response:
        """Call it with these ids; a missing id becomes one that does not exist."""
        params = dict.fromkeys(self.ids, "nothing") | dict(ids or {})
        return api_user.request(self.method, self.path.format(**params), json=self.body, **options)


def operations(api_user: ApiUser) -> list[Operation]:
    """Return every operation of the API."""
    document = api_user.openapi()
    return list(_operations(document))


def _operations(document: dict[str, Any]) -> Iterator[Operation]:
    for path, methods in document["paths"].items():
        for method, detail in methods.items():
            ids = tuple(
                parameter["name"]
                for parameter in detail.get("parameters", ())
                if parameter["in"] == "path"
            )
            content = detail.get("requestBody", {}).get("content", {})
            schema = next((kind.get("schema", {}) for kind in content.values()), None)
            body = None if schema is None else sample(schema, document)
            needs_claim_token = "runs" in detail.get("tags", ())
            yield Operation(method.upper(), path, ids, body, needs_claim_token)


def sample(schema: Mapping[str, Any], document: Mapping[str, Any]) -> Any:
    """Return a minimal value that matches a schema."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return sample(document["components"]["schemas"][name], document)
    for keyword in ("const", "default"):
        if keyword in schema:
            return schema[keyword]
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema or "oneOf" in schema:
        branches = schema.get("anyOf") or schema["oneOf"]
        return sample(next(branch for branch in branches if branch.get("type") != "null"), document)
    match schema.get("type"):
        case "object":
            required = schema.get("required", ())
            return {name: sample(schema["properties"][name], document) for name in required}
        case "array":
            return [sample(schema["items"], document)] * max(1, schema.get("minItems", 1))
        case "integer" | "number":
            return schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
        case "boolean":
            return False
        case "string":
            return (
                FAR_FUTURE
                if schema.get("format") == "date-time"
                else "a" * schema.get("minLength", 1)
            )
        case _:
            return {}
