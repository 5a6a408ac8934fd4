"""Write the list of routes into the reference page: `python -m overnight_server.api.reference`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from overnight_server.api.main import ROUTES

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "http.md"
BEGIN, END = "<!-- routes -->\n", "<!-- end of routes -->\n"


def page(text: str) -> str:
    """Return the page with the routes of today in their place."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    routes = "".join(f"{line}\n" for line in _lines(described()))
    return f"{before}{BEGIN}{routes}{END}{after}"


def described() -> dict[str, Any]:
    """Return the OpenAPI description; no database is needed for it."""
    api = FastAPI(title="Overnight")
    for module in ROUTES:
        api.include_router(module.router)
    return api.openapi()


def _lines(description: dict[str, Any]) -> Iterator[str]:
    yield "| Method and path | Does | Answers |"
    yield "|---|---|---|"
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            yield f"| `{method.upper()} {path}` | {_does(operation)} | {_answers(operation)} |"


def _does(operation: dict[str, Any]) -> str:
    first = operation["description"].split("\n\n")[0]
    asked = [one["name"] for one in operation.get("parameters", ()) if one["in"] == "query"]
    said = f" Takes {', '.join(f'`{name}`' for name in asked)}." if asked else ""
    return " ".join(f"{first}{said}".split()).replace("|", "\\|")


def _answers(operation: dict[str, Any]) -> str:
    status, answer = next(iter(operation["responses"].items()))
    schema: dict[str, Any] = next(
        (kind.get("schema", {}) for kind in answer.get("content", {}).values()), {}
    )
    many = schema.get("type") == "array"
    name = (schema.get("items", {}) if many else schema).get("$ref", "").rpartition("/")[2]
    return f"{status}" + (f" `{name}[]`" if name and many else f" `{name}`" if name else "")


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
