"""The reference page of HTTP, held to the routes there are."""

from overnight_server.api import reference


def test_the_page_lists_the_routes_of_today() -> None:
    written = reference.PAGE.read_text(encoding="utf-8")

    assert written == reference.page(written), (
        "write it again with `python -m overnight_server.api.reference`"
    )


def test_every_operation_says_what_it_is_for() -> None:
    operations = [
        (f"{method.upper()} {path}", operation)
        for path, methods in reference.openapi_document()["paths"].items()
        for method, operation in methods.items()
    ]

    assert operations
    for name, operation in operations:
        assert operation["tags"], name
        assert operation["description"].endswith("."), name
