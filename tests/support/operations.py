"""Every operation the API describes, each ready to be called: found, never listed by hand."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from httpx2 import Response

from tests.support.api_user import ApiUser

OPEN = ("/health", "/ready")
ADMIN = "/api/v1/admin/"
FAR = "2031-01-31T07:00:00Z"


@dataclass(frozen=True)
class Operation:
    """One method of one path, with what it wants of its caller."""

    method: str
    path: str
    ids: tuple[str, ...]
    body: object | None
    is_runs: bool = False

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def is_open(self) -> bool:
        """Whether anybody may call it."""
        return self.path in OPEN

    @property
    def is_admins(self) -> bool:
        """Whether only admins may call it."""
        return self.path.startswith(ADMIN)

    def call(
        self, api_user: ApiUser, ids: Mapping[str, str] | None = None, **options: Any
    ) -> Response:
        """Call it with these ids, or with none that exist."""
        named = dict.fromkeys(self.ids, "nothing") | dict(ids or {})
        return api_user.ask(self.method, self.path.format(**named), json=self.body, **options)


def operations(api_user: ApiUser) -> list[Operation]:
    """Return every operation of the app behind a api_user."""
    described = api_user.http.get("/api/v1/openapi.json").json()
    return list(_operations(described))


def _operations(described: dict[str, Any]) -> Iterator[Operation]:
    for path, methods in described["paths"].items():
        for method, detail in methods.items():
            ids = tuple(
                parameter["name"]
                for parameter in detail.get("parameters", ())
                if parameter["in"] == "path"
            )
            content = detail.get("requestBody", {}).get("content", {})
            schema = next((kind.get("schema", {}) for kind in content.values()), None)
            body = None if schema is None else sample(schema, described)
            # Those of runs are opened by the token of a claim, and by no key.
            is_runs = "runs" in detail.get("tags", ())
            yield Operation(method.upper(), path, ids, body, is_runs)


def sample(schema: Mapping[str, Any], described: Mapping[str, Any]) -> Any:
    """Make the least value that fits a schema."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return sample(described["components"]["schemas"][name], described)
    for given in ("const", "default"):
        if given in schema:
            return schema[given]
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema or "oneOf" in schema:
        branches = schema.get("anyOf") or schema["oneOf"]
        return sample(next(one for one in branches if one.get("type") != "null"), described)
    match schema.get("type"):
        case "object":
            wanted = schema.get("required", ())
            return {name: sample(schema["properties"][name], described) for name in wanted}
        case "array":
            return [sample(schema["items"], described)] * max(1, schema.get("minItems", 1))
        case "integer" | "number":
            return schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
        case "boolean":
            return False
        case "string":
            return FAR if schema.get("format") == "date-time" else "a" * schema.get("minLength", 1)
        case _:
            return {}
