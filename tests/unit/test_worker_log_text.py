"""Output of runs becomes text that can be stored: valid, masked, line by line."""

import base64
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overnight_server import mask
from overnight_server.mask import StreamMask, add_secret
from overnight_worker.log_text import LogText

SECRET = "pass-pa-passw0rd/+"


@pytest.fixture(autouse=True)
def one_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mask, "_secrets", set())
    add_secret(SECRET)
    add_secret("d/+d/+second")


def parts_of(text: str, sizes: list[int]) -> list[str]:
    """Return a text in parts of these sizes, again and again."""
    parts, start, number = [], 0, 0
    while start < len(text):
        size = sizes[number % len(sizes)]
        parts.append(text[start : start + size])
        start, number = start + size, number + 1
    return parts


@given(
    pieces=st.lists(st.sampled_from([SECRET, SECRET[:7], "d/+", "d/+second", "p", "\n", "x"])),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5),
)
def test_a_text_in_parts_is_masked_like_the_whole_text(pieces: list[str], sizes: list[int]) -> None:
    text = "".join(pieces)
    stream = StreamMask()

    masked = "".join(stream.feed(part) for part in parts_of(text, sizes)) + stream.rest()

    assert SECRET not in masked
    assert "d/+d/+second" not in masked
    assert masked.count(mask.MASK) >= text.count(SECRET)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 64])
@pytest.mark.parametrize(
    "form",
    [
        SECRET,
        quote(SECRET, safe=""),
        base64.b64encode(SECRET.encode()).decode(),
        base64.b64encode(f"ada:{SECRET}".encode()).decode(),
        base64.urlsafe_b64encode(f"me:{SECRET}!".encode()).decode(),
    ],
)
def test_every_form_of_a_secret_is_masked_across_parts(form: str, size: int) -> None:
    text = LogText(longest_line=1000)

    shown = "".join(text.feed(part) for part in parts_of(f"a {form} b\n", [size])) + text.rest()

    assert form not in shown
    assert mask.MASK in shown
    assert (shown[:2], shown[-3:]) == ("a ", " b\n")


def test_lines_come_when_they_are_complete() -> None:
    text = LogText(longest_line=1000)

    assert text.feed("one\ntw") == "one\n"
    assert text.feed("o\rthree") == "two\r"
    assert text.rest() == "three"
    assert text.rest() == ""


def test_a_line_without_an_end_comes_in_pieces() -> None:
    text = LogText(longest_line=10)

    assert text.feed("a" * 10) == ""
    assert text.feed("b") == "a" * 10 + "b"


@pytest.mark.parametrize(
    ("parts", "shown"),
    [
        ([b"caf\xc3", b"\xa9\n"], "café\n"),
        ([b"\xff\xfe\n"], "\ufffd\ufffd\n"),
        ([b"end \xc3"], "end \ufffd"),
        (["nul \0\n"], "nul \ufffd\n"),
        (["half \ud800\n"], "half ?\n"),
    ],
)
def test_what_postgres_cannot_store_is_replaced(parts: list[bytes | str], shown: str) -> None:
    text = LogText(longest_line=1000)

    assert "".join(text.feed(part) for part in parts) + text.rest() == shown


def test_credentials_in_a_line_are_masked() -> None:
    text = LogText(longest_line=1000)

    assert text.feed("see redis://app:hunter2@cache/0\n") == "see redis://app:***@cache/0\n"


def test_a_text_without_secrets_passes_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mask, "_secrets", set())

    assert StreamMask().feed(SECRET) == SECRET
