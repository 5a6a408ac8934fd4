"""Remembered callers of API keys: how long, and how many."""

from uuid import uuid4

from overnight_server.api.http.known_keys import LIFETIME_SECONDS, MAX_KEYS, KnownKeys
from overnight_server.control.keys import Caller
from overnight_server.domain.ids import UserId

CALLER = Caller(UserId(uuid4()), "id", ("*",))


def test_a_caller_is_remembered_for_its_lifetime_only() -> None:
    now = [0.0]
    known = KnownKeys(clock=lambda: now[0])
    known.add("key", CALLER)

    assert known.find("key") == CALLER
    assert known.find("another") is None
    now[0] += LIFETIME_SECONDS
    assert known.find("key") is None


def test_many_keys_do_not_fill_the_memory() -> None:
    known = KnownKeys()

    for number in range(MAX_KEYS + 1):
        known.add(str(number), CALLER)

    assert known.find(str(MAX_KEYS)) == CALLER
    assert known.find("0") is None
