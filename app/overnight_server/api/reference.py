"""Write the list of routes into the reference page: `python -m overnight_server.api.reference`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from overnight_server.api.main import ROUTES

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "http.md"
BEGIN, END = "<!-- routes -->\n", "<!-- end of routes -->\n"


def page(text: str) -> str:
    """Return the page with its list of routes replaced by the current routes."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    routes = "".join(f"{line}\n" for line in _lines(openapi_document()))
    return f"{before}{BEGIN}{routes}{END}{after}"


def openapi_document() -> dict[str, Any]:
    """Return the OpenAPI document; needs no database."""
    api = FastAPI(title="Overnight")
    for module in ROUTES:
        api.include_router(module.router)
    return api.openapi()


def _lines(description: dict[str, Any]) -> Iterator[str]:
    yield "| Method and path | What it does | Response |"
    yield "|---|---|---|"
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            yield f"| `{method.upper()} {path}` | {_summary(operation)} | {_response(operation)} |"


def _summary(operation: dict[str, Any]) -> str:
    first = operation["description"].split("\n\n")[0]
    parameters = operation.get("parameters", ())
    names = [f"`{parameter['name']}`" for parameter in parameters if parameter["in"] == "query"]
    query = f" Takes {', '.join(names)}." if names else ""
    return " ".join(f"{first}{query}".split()).replace("|", "\\|")


def _response(operation: dict[str, Any]) -> str:
    status, response = next(iter(operation["responses"].items()))
    schema: dict[str, Any] = next(
        (content.get("schema", {}) for content in response.get("content", {}).values()), {}
    )
    is_list = schema.get("type") == "array"
    name = (schema.get("items", {}) if is_list else schema).get("$ref", "").rpartition("/")[2]
    return f"{status}" + (f" `{name}[]`" if name and is_list else f" `{name}`" if name else "")


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
