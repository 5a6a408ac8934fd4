"""Hide what must never be shown: passwords, keys and tokens, in names and in text."""

import re
from collections.abc import Mapping
from functools import lru_cache

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
    if isinstance(value, str):
        return mask_text(value)
    if isinstance(value, Mapping):
        return {key: mask_value(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [mask_value(name, inner) for inner in value]
    return value
