"""Every guarantee of the security page has a test, and its scopes are those of the code."""

import re
from pathlib import Path

from overnight.models.scopes import SCOPES
from tests.rules.sources import as_lines, read

PAGE = read(Path("docs/security.md"))


def test_every_test_the_page_names_exists() -> None:
    tests = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)
    missing = [
        f"{path}::{name}"
        for path, name in tests
        if not Path(path).exists() or (name and f"def {name}(" not in read(Path(path)))
    ]

    assert len(tests) > 15
    assert not missing, as_lines(missing)


def test_every_risk_has_a_test() -> None:
    rows = re.findall(r"(?m)^\| (\d+) .+\| `tests/", PAGE)

    assert rows == [str(number) for number in range(1, 11)]


def test_the_page_lists_exactly_the_scopes_there_are() -> None:
    # Other tables of the page list tables and functions of the database.
    keys = PAGE.partition("### Rights in the database")[0]
    listed = dict(re.findall(r"(?m)^\| `([a-z:*-]+)` \| (.+) \|$", keys))

    assert listed == SCOPES
