"""`overnight open` signs a browser in with a link that works once."""

import json
import webbrowser

import pytest

from tests.support.api_user import ApiUser
from tests.support.command import run


def test_the_link_is_opened_or_printed(admin_cli: ApiUser, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: bool(opened.append(url)) or True)

    told = run("open")
    printed = run("open", "--print")
    document = json.loads(run("open", "--json").stdout)

    assert len(opened) == 1
    assert opened[0] not in told.stdout
    assert printed.stdout.startswith("http")
    assert document["url"].rpartition("/")[0] == printed.stdout.strip().rpartition("/")[0]
    assert len({opened[0], printed.stdout.strip(), document["url"]}) == 3
