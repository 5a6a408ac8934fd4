"""The reference page of HTTP lists the routes of the API."""

from overnight_server.api import reference


def test_the_page_lists_the_current_routes() -> None:
    written = reference.PAGE.read_text(encoding="utf-8")

    assert written == reference.page(written), (
        "write it again with `python -m overnight_server.api.reference`"
    )


def test_every_operation_has_a_description() -> None:
    operations = [
        (f"{method.upper()} {path}", operation)
        for path, methods in reference.openapi_document()["paths"].items()
        for method, operation in methods.items()
    ]

    assert operations
    for name, operation in operations:
        assert operation["tags"], name
        assert operation["description"].endswith("."), name
