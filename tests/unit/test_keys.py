"""The shape of API keys: what can be judged without a database."""

import re
from uuid import UUID

import pytest

from overnight_server.control.keys import Caller, authenticate, is_well_formed, key_id_of, new_key
from overnight_server.domain.ids import UserId
from overnight_server.store.db import Db

NOBODY = UserId(UUID(int=0))


def test_a_new_key_has_the_documented_shape() -> None:
    assert re.fullmatch(r"overnight_live_[0-9A-Za-z]{12}_[0-9A-Za-z]{43}_[0-9A-Za-z]{6}", new_key())


def test_generated_keys_are_unique() -> None:
    keys = {new_key() for _ in range(200)}

    assert len(keys) == 200
    assert len({key_id_of(key) for key in keys}) == 200


def test_a_new_key_passes_its_own_check() -> None:
    assert all(is_well_formed(new_key()) for _ in range(200))


@pytest.mark.parametrize("place", range(len("overnight_live_") + 12 + 1 + 43 + 1 + 6))
def test_one_wrong_character_anywhere_is_noticed(place: int) -> None:
    key = new_key()
    wrong = "x" if key[place] != "x" else "y"

    assert not is_well_formed(key[:place] + wrong + key[place + 1 :])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "_",
        "____",
        "overnight_live_",
        "Bearer x",
        pytest.param(
            "overnight_test_" + new_key().removeprefix("overnight_live_"), id="another prefix"
        ),
        pytest.param(new_key() + "\n", id="a line end after it"),
        pytest.param(" " + new_key(), id="a space before it"),
        pytest.param(new_key()[:-1], id="cut short"),
        pytest.param(new_key().upper(), id="in capitals"),
        "é" * 80,
        "\x00",
        pytest.param("x" * 100_000, id="far too long"),
        pytest.param(new_key().replace("_", "__"), id="doubled underscores"),
    ],
)
def test_a_malformed_key_is_refused_without_the_database(text: str) -> None:
    unreachable = Db.connect("postgresql://nobody@127.0.0.1:1/nowhere")

    assert authenticate(unreachable, text) is None


def test_scopes_decide_what_a_caller_may_do() -> None:
    reader = Caller(NOBODY, "k", ("tasks:read",))

    assert reader.may("tasks:read")
    assert not reader.may("tasks:write")
    assert Caller(NOBODY, "k", ("*",)).may("tasks:write")
