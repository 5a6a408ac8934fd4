"""Hide what must never be shown: passwords, keys and tokens, in names and in text."""

import base64
import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote

MASK = "***"

# Whole words only: `token` is a secret, `tokens_used` is a bill.
_SECRET_WORDS = re.compile(
    r"(?:^|_)(?:token|password|passwd|secret|api_?key|authorization|cookie)(?:_|$)"
)
# Greedy up to the last @ before the path, because a careless password may hold one itself.
_URL_PASSWORD = re.compile(r"(?P<head>[a-z][a-z0-9+.-]*://[^/\s:@]*:)[^\s/]+(?=@)", re.IGNORECASE)
_NAMED_PASSWORD = re.compile(
    r"(?P<head>\b(?:password|passwd)=)(?:'[^']*'|[^\s&;,]+)", re.IGNORECASE
)
# Marks without which none of the patterns can match; most texts have none of them.
_SUSPICIOUS = re.compile(r"[@=\s]")
_CREDENTIALS = re.compile(r"(?P<head>\b(?:bearer|basic)\s+)[\w.~+/=-]{8,}", re.IGNORECASE)
# Where Postgres quotes what it was given, on the lines after its message: the row that a rule
# refused, the key that was there before, the place in a statement or in JSON.
_QUOTED_ROW = re.compile(r"(?P<head>Failing row contains )\(.*\)(?=\.(?:\n|\Z))", re.DOTALL)
_QUOTED_LINE = re.compile(
    r"(?P<head>\n(?:LINE \d+: |DETAIL:  Key \(.*?\)=|CONTEXT:  JSON data, line \d+: )).*"
)

# Values that this process was trusted with, in every form they may take on their way out.
_hidden: set[str] = set()


def hide(value: str) -> None:
    """Hide a value from now on wherever this process masks, also quoted or in base 64."""
    encoded = base64.b64encode(value.encode()).decode().rstrip("=")
    _hidden.update((value, quote(value, safe=""), json.dumps(value)[1:-1], encoded))


def hide_in(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Return a JSON value without the values that are hidden, in texts and in names."""
    if not _hidden:
        return value
    if isinstance(value, str):
        return _without_hidden(value)
    if isinstance(value, Mapping):
        return {_without_hidden(str(name)): hide_in(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [hide_in(inner) for inner in value]
    return value


def mask_names(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Return a JSON value with what stands under a secret name hidden, and texts as they are.

    >>> mask_names({"user": "ada", "login": [{"password": "hunter2"}]})
    {'user': 'ada', 'login': [{'password': '***'}]}
    """
    if isinstance(value, Mapping):
        return {
            name: MASK if _is_told_by(name, inner) else mask_names(inner)
            for name, inner in value.items()
        }
    return [mask_names(inner) for inner in value] if isinstance(value, list) else value


def _is_told_by(name: str, inner: object) -> bool:
    # A reference to a secret is none.
    is_reference = isinstance(inner, str) and inner.startswith("secret:")
    return is_secret_name(name) and inner is not None and not is_reference


def _without_hidden(text: str) -> str:
    # The longest first: one secret may be a part of another.
    for value in sorted(_hidden, key=len, reverse=True):
        text = text.replace(value, MASK)
    return text


def _without_rows(text: str) -> str:
    """Take out of an error of the database what it quotes of people's data."""
    if "\n" not in text:
        return text
    for pattern in (_QUOTED_ROW, _QUOTED_LINE):
        text = pattern.sub(rf"\g<head>{MASK}", text)
    return text


# Field names are few and come again with every line.
@lru_cache(maxsize=1024)
def is_secret_name(name: str) -> bool:
    """Tell whether a field of this name holds a secret.

    >>> [is_secret_name(name) for name in ("claim_token", "X-Api-Key", "tokens_used")]
    [True, True, False]
    """
    return _SECRET_WORDS.search(name.lower().replace("-", "_")) is not None


def mask_text(text: str) -> str:
    """Hide the passwords and credentials that a text carries, and keep the rest readable.

    >>> mask_text("could not reach redis://app:hunter2@cache:6379/0")
    'could not reach redis://app:***@cache:6379/0'
    """
    if _hidden:
        text = _without_hidden(text)
    if not _SUSPICIOUS.search(text):
        return text
    for pattern in (_URL_PASSWORD, _NAMED_PASSWORD, _CREDENTIALS):
        text = pattern.sub(rf"\g<head>{MASK}", text)
    return text


def mask_value(name: str, value: object) -> object:
    """Hide a field's value if its name or its text gives a secret away, however deep it lies."""
    if value is None or isinstance(value, bool):
        return value
    if is_secret_name(name):
        return MASK
    if isinstance(value, str | BaseException):
        return mask_text(_without_rows(str(value)))
    if isinstance(value, Mapping):
        return {key: mask_value(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [mask_value(name, inner) for inner in value]
    return value
