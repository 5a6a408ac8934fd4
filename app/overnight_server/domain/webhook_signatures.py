"""Signatures of webhooks as the Standard Webhooks specification defines them.

The header `webhook-signature` holds signatures separated by spaces, each `v1,` and the base 64 of
an HMAC-SHA256 over `<id>.<timestamp>.<body>`. The id, in `webhook-id`, stays the same when a
message is sent again; the timestamp, in `webhook-timestamp`, is that of the try, in whole seconds
since 1970. While a secret is being replaced, a message has one signature for each secret.
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence

ID_HEADER = "webhook-id"
TIMESTAMP_HEADER = "webhook-timestamp"
SIGNATURE_HEADER = "webhook-signature"
VERSION = "v1,"
SECRET_PREFIX = "whsec_"  # noqa: S105 - the beginning of every secret
LEGAL_SECRET = f"{SECRET_PREFIX} and the base 64 of 24 to 64 bytes"
KEY_BYTES = range(24, 65)
# How many seconds old, or early, a message may be.
TOLERANCE_SECONDS = 300
# More would only let a request cost time: a sender has two while it replaces a secret.
MAX_SIGNATURES = 16
_TIMESTAMP = re.compile(r"[0-9]{1,12}")


class SignatureRefused(Exception):
    """A message is not proven to come from the holder of the secret, or not to be recent."""


def show_secret(key: bytes) -> str:
    """Return a key of 24 to 64 random bytes in the form in which people copy it.

    >>> show_secret(bytes(24))
    'whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA'
    """
    return SECRET_PREFIX + base64.b64encode(key).decode()


def parse_secret(secret: str) -> bytes:
    """Return the key that a secret stands for; raise ValueError for what is no secret."""
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (ValueError, binascii.Error):
        key = b""
    if len(key) not in KEY_BYTES:
        raise ValueError(f"is not {LEGAL_SECRET}")
    return key


def signature(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """Return one signature of a message.

    >>> signature(show_secret(bytes(32)), "msg_1", 1614265330, b"{}")
    'v1,ONjOH+g8tKQOwBW/l2Ew8DI7ahP5iygTrq4r12BiJXg='
    """
    signed = f"{message_id}.{timestamp}.".encode() + body
    digest = hmac.new(parse_secret(secret), signed, hashlib.sha256).digest()
    return VERSION + base64.b64encode(digest).decode()


def signed_headers(
    secrets: Sequence[str], message_id: str, timestamp: int, body: bytes
) -> dict[str, str]:
    """Return the headers that prove who sent a message, and when, to holders of any secret."""
    return {
        ID_HEADER: message_id,
        TIMESTAMP_HEADER: str(timestamp),
        SIGNATURE_HEADER: " ".join(
            signature(secret, message_id, timestamp, body) for secret in secrets
        ),
    }


def verify(
    secrets: Sequence[str],
    headers: Mapping[str, str],
    body: bytes,
    *,
    now: float,
    tolerance: float = TOLERANCE_SECONDS,
) -> str:
    """Return the id of a message that is signed with one of the secrets and is recent.

    The names of the headers are in lower case; `body` is what was received, byte by byte. Raises
    SignatureRefused, whose text may be shown to the sender. The time that it takes does not depend
    on which signature or secret is right. A message that was read by others can be sent again
    within the tolerance: whoever acts on it must remember the ids.
    """
    missing = [
        name for name in (ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER) if not headers.get(name)
    ]
    if missing:
        raise SignatureRefused(f"the header {missing[0]} is missing")
    message_id, timestamp = headers[ID_HEADER], headers[TIMESTAMP_HEADER]
    if not _TIMESTAMP.fullmatch(timestamp):
        raise SignatureRefused(f"the header {TIMESTAMP_HEADER} is not in seconds since 1970")
    signatures = headers[SIGNATURE_HEADER].split()[:MAX_SIGNATURES]
    matches = [
        hmac.compare_digest(
            given.encode(), signature(secret, message_id, int(timestamp), body).encode()
        )
        for secret in secrets
        for given in signatures
    ]
    if not any(matches):
        raise SignatureRefused("no signature is right for this message and secret")
    if abs(now - int(timestamp)) > tolerance:
        raise SignatureRefused(f"the message is not from the last {tolerance:.0f} seconds")
    return message_id
