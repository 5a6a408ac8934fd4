"""Masks passwords, keys and tokens in fields and in texts."""

import base64
import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import quote, quote_plus

MASK = "***"

# Whole words only: `token` is a secret, `tokens_used` is not.
_SECRET_WORDS = re.compile(
    r"(?:^|_)(?:token|password|passwd|secret|api_?key|authorization|cookie)(?:_|$)"
)
# Greedy up to the last @ before the path, because a password may contain one itself. The scheme is
# not part of the pattern: looking for one takes quadratic time in a text without spaces.
_URL_PASSWORD = re.compile(r"(?P<head>://[^/\s:@]*:)[^\s/]+(?=@)")
_NAMED_PASSWORD = re.compile(
    r"(?P<head>\b(?:password|passwd)=)(?:'[^']*'|[^\s&;,]+)", re.IGNORECASE
)
_CREDENTIALS = re.compile(r"(?P<head>\b(?:bearer|basic)\s+)[\w.~+/=-]{8,}", re.IGNORECASE)
# A text without these words has no match. To look for a word takes a hundredth of the time that a
# pattern takes, and most texts have none of them. What is masked does not match again.
_PATTERN_BY_WORD = (
    ("://", _URL_PASSWORD),
    ("password=", _NAMED_PASSWORD),
    ("passwd=", _NAMED_PASSWORD),
    ("bearer", _CREDENTIALS),
    ("basic", _CREDENTIALS),
)
# Where Postgres quotes data on the lines after its message: the row that violates a constraint, a
# duplicate key, the position in a statement or in JSON.
_QUOTED_ROW = re.compile(r"(?P<head>Failing row contains )\(.*\)(?=\.(?:\n|\Z))", re.DOTALL)
_QUOTED_LINE = re.compile(
    r"(?P<head>\n(?:LINE \d+: |DETAIL:  Key \(.*?\)=|CONTEXT:  JSON data, line \d+: )).*"
)

# The alphabet of base 64 in URLs.
_URL_SAFE = str.maketrans("+/", "-_")

# Secrets that this process has read, in every encoding in which they may be written.
_secrets: set[str] = set()


def add_secret(value: str) -> None:
    """Mask a value from now on wherever this process masks, also URL-quoted or in base 64."""
    _secrets.update((value, quote(value, safe=""), quote_plus(value), json.dumps(value)[1:-1]))
    _secrets.update(_in_base64(value.encode()))


def _in_base64(secret: bytes) -> Iterator[str]:
    """Yield what base 64 makes of a secret, wherever it stands in the encoded bytes.

    Three bytes become four characters, so there are three forms. Characters that depend on the
    bytes before and after the secret are left out.
    """
    for offset in range(3):
        encoded = base64.b64encode(bytes(offset) + secret).rstrip(b"=").decode()
        is_whole = (offset + len(secret)) % 3 == 0
        form = encoded[(offset * 4 + 2) // 3 : None if is_whole else -1]
        yield form
        yield form.translate(_URL_SAFE)


def mask_secrets(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Return a JSON value with known secrets masked, in texts and in names."""
    if not _secrets:
        return value
    if isinstance(value, str):
        return _mask_known(value)
    if isinstance(value, Mapping):
        return {_mask_known(str(name)): mask_secrets(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [mask_secrets(inner) for inner in value]
    return value


def mask_names(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Return a JSON value with the values of secret names masked; other texts stay.

    >>> mask_names({"user": "ada", "login": [{"password": "hunter2"}]})
    {'user': 'ada', 'login': [{'password': '***'}]}
    """
    if isinstance(value, Mapping):
        return {
            name: MASK if _holds_secret(name, inner) else mask_names(inner)
            for name, inner in value.items()
        }
    return [mask_names(inner) for inner in value] if isinstance(value, list) else value


def _holds_secret(name: str, inner: object) -> bool:
    # A reference to a secret is not a secret.
    is_reference = isinstance(inner, str) and inner.startswith("secret:")
    return is_secret_name(name) and inner is not None and not is_reference


def _mask_known(text: str) -> str:
    for value in _forms(frozenset(_secrets)).longest_first:
        text = text.replace(value, MASK)
    return text


def _mask_quoted_rows(text: str) -> str:
    """Mask the data that a database error quotes."""
    if "\n" not in text:
        return text
    for pattern in (_QUOTED_ROW, _QUOTED_LINE):
        text = pattern.sub(rf"\g<head>{MASK}", text)
    return text


# Field names are few and repeat in every log line.
@lru_cache(maxsize=1024)
def is_secret_name(name: str) -> bool:
    """Whether a field of this name holds a secret.

    >>> [is_secret_name(name) for name in ("claim_token", "X-Api-Key", "tokens_used")]
    [True, True, False]
    """
    return _SECRET_WORDS.search(name.lower().replace("-", "_")) is not None


def mask_text(text: str) -> str:
    """Return a text with its passwords and credentials masked.

    >>> mask_text("could not reach redis://app:hunter2@cache:6379/0")
    'could not reach redis://app:***@cache:6379/0'
    """
    return mask_credentials(_mask_known(text) if _secrets else text)


def mask_credentials(text: str) -> str:
    """Return a text with passwords in URLs and credentials in headers masked.

    >>> mask_credentials("Authorization: Bearer abcdefgh.ijkl")
    'Authorization: Bearer ***'
    """
    lowered = _lowered(text)
    for word, pattern in _PATTERN_BY_WORD:
        if word in lowered:
            text = pattern.sub(rf"\g<head>{MASK}", text)
    return text


def _lowered(text: str) -> str:
    """Return a text in lower case, so that it contains a word wherever the patterns match the word.

    Patterns that ignore case match `i` also with I with a dot and with i without one, and `s` with
    the long s; `lower` leaves these three as they are or in two parts. It makes the sign of Kelvin,
    which matches `k`, a k.
    """
    if text.isascii():
        return text.lower()
    return text.replace("\u0130", "i").lower().replace("\u0131", "i").replace("\u017f", "s")


def mask_value(name: str, value: object) -> object:
    """Return a field's value with secrets masked by name and by text, at any depth."""
    if value is None or isinstance(value, bool):
        return value
    if is_secret_name(name):
        return MASK
    if isinstance(value, str | BaseException):
        return mask_text(_mask_quoted_rows(str(value)))
    if isinstance(value, Mapping):
        return {key: mask_value(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [mask_value(name, inner) for inner in value]
    return value


class StreamMask:
    """Masks known secrets in a text that comes in parts, also one that two parts share."""

    def __init__(self) -> None:
        self._held_back = ""

    def feed(self, part: str) -> str:
        """Return the text so far that is not returned yet, less an end that may begin a secret."""
        if not _secrets:
            return part
        text = self._held_back + part
        cut = _end_of_known(text, _forms(frozenset(_secrets)))
        self._held_back = text[cut:]
        return _mask_known(text[:cut])

    def rest(self) -> str:
        """Return what was held back: no further part follows."""
        rest, self._held_back = self._held_back, ""
        return _mask_known(rest)


class _Forms(NamedTuple):
    """The known secrets as the searches need them."""

    # One secret may be part of another.
    longest_first: tuple[str, ...]
    characters: frozenset[str]
    pattern: re.Pattern[str]


@lru_cache(maxsize=4)
def _forms(secrets: frozenset[str]) -> _Forms:
    longest_first = tuple(sorted(secrets, key=len, reverse=True))
    pattern = re.compile("|".join(map(re.escape, longest_first)))
    return _Forms(longest_first, frozenset("".join(secrets)), pattern)


def _end_of_known(text: str, forms: _Forms) -> int:
    """Return where a text ends that no further part can change: before what may begin a secret."""
    # Most parts end with the end of a line, which is in no secret.
    if text[-1:] not in forms.characters:
        return len(text)
    cut = min(_begin_of(secret, text) for secret in forms.longest_first)
    for known in forms.pattern.finditer(text):
        if known.start() < cut < known.end():
            cut = known.start()
    return cut


def _begin_of(secret: str, text: str) -> int:
    """Return where an unfinished secret begins at the end of a text; else the text's length."""
    start = text.find(secret[0], max(0, len(text) - len(secret) + 1))
    while start != -1 and not secret.startswith(text[start:]):
        start = text.find(secret[0], start + 1)
    return len(text) if start == -1 else start
