"""The token of forms: it shows that a form was made for a session, and reads anew on each page.

A token is a random mask and the signature combined with it, so that no text of two pages is equal.
Otherwise somebody who sees the sizes of compressed pages could guess the token from them.
"""

import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hmac import compare_digest

from overnight_server.control.sessions import sign

BYTES = 16


def make_token(secret: str) -> str:
    """Return a token for a form of a session.

    >>> make_token("secret") != make_token("secret")
    True
    """
    mask = secrets.token_bytes(BYTES)
    return urlsafe_b64encode(mask + _combine(mask, _signature(secret))).decode().rstrip("=")


def is_valid_token(secret: str, token: str) -> bool:
    """Whether a token was made for this session.

    >>> token = make_token("secret")
    >>> is_valid_token("secret", token), is_valid_token("other", token)
    (True, False)
    >>> is_valid_token("secret", "é"), is_valid_token("secret", "")
    (False, False)
    """
    try:
        content = urlsafe_b64decode(token.encode("ascii") + b"=")
    except ValueError:
        return False
    mask, masked = content[:BYTES], content[BYTES:]
    return len(masked) == BYTES and compare_digest(_combine(mask, masked), _signature(secret))


def _signature(secret: str) -> bytes:
    return bytes.fromhex(sign(secret, "form"))[:BYTES]


def _combine(mask: bytes, content: bytes) -> bytes:
    return bytes(one ^ other for one, other in zip(mask, content, strict=True))
