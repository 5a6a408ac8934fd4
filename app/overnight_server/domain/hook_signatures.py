"""How the senders of webhooks prove who they are: five schemes, one function.

    standard  Standard Webhooks: `webhook-id`, `webhook-timestamp`, `webhook-signature`
    github    `X-Hub-Signature-256: sha256=<hex>` over the body
    slack     `X-Slack-Signature: v0=<hex>` over `v0:<timestamp>:<body>`, the timestamp in
              `X-Slack-Request-Timestamp`
    stripe    `Stripe-Signature: t=<timestamp>,v1=<hex>` over `<timestamp>.<body>`; several `v1`
    token     the secret itself, in a header

Each is an HMAC-SHA256, except the token. All comparisons take the same time whatever is compared,
and all secrets and signatures are compared before the answer is known.
"""

import hashlib
import hmac
import re
import secrets as random_source
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final

from overnight_server.domain import webhook_signatures
from overnight_server.domain.json_pointers import PointerMissing, value_at
from overnight_server.domain.webhook_signatures import (
    MAX_SIGNATURES,
    TOLERANCE_SECONDS,
    SignatureRefused,
    parse_secret,
    show_secret,
)

GITHUB_HEADER: Final = "x-hub-signature-256"
SLACK_HEADER: Final = "x-slack-signature"
SLACK_TIME_HEADER: Final = "x-slack-request-timestamp"
STRIPE_HEADER: Final = "stripe-signature"
TOKEN_HEADER: Final = "x-webhook-token"  # noqa: S105 - the name of a header
#: Where senders that use a token may name their delivery, so that a repetition is recognized.
TOKEN_ID_HEADERS: Final = ("webhook-id", "idempotency-key", "x-gitlab-event-uuid")
SECRET_LENGTH: Final = range(16, 201)
MAX_ID_LENGTH: Final = 200
_TIMESTAMP: Final = re.compile(r"[0-9]{1,12}", re.ASCII)


class HookScheme(StrEnum):
    """How a sender proves who it is."""

    STANDARD = "standard"
    GITHUB = "github"
    SLACK = "slack"
    STRIPE = "stripe"
    TOKEN = "token"  # noqa: S105 - the name of a scheme


#: The header with the proof, where a source may name another one.
DEFAULT_HEADER: Final[Mapping[HookScheme, str]] = {
    HookScheme.STRIPE: STRIPE_HEADER,
    HookScheme.TOKEN: TOKEN_HEADER,
}


def new_secret(scheme: HookScheme) -> str:
    """Return a new secret of 32 random bytes."""
    if scheme is HookScheme.STANDARD:
        return show_secret(random_source.token_bytes(32))
    return random_source.token_urlsafe(32)


def check_secret(scheme: HookScheme, secret: str) -> None:
    """Raise ValueError, with what is legal, for a secret that a sender could not use."""
    if scheme is HookScheme.STANDARD:
        parse_secret(secret)
    elif len(secret) not in SECRET_LENGTH or not secret.isascii() or not secret.isprintable():
        raise ValueError(
            f"is not {SECRET_LENGTH.start} to {SECRET_LENGTH.stop - 1} printable ASCII characters"
        )


def verify_hook(
    scheme: HookScheme,
    secrets: Sequence[str],
    headers: Mapping[str, str],
    body: bytes,
    *,
    now: float,
    header: str | None = None,
) -> str | None:
    """Return the key of a request that is proven to come from a holder of one of the secrets.

    The key is the same when the sender repeats the request, and nobody without the secret can send
    the request under another key. With a token it is None if the sender names no delivery. The
    names of the headers are in lower case. `id_in_body` may find a better key. Raises
    SignatureRefused.
    """
    named = header or DEFAULT_HEADER.get(scheme, "")
    match scheme:
        case HookScheme.STANDARD:
            key = webhook_signatures.verify(secrets, headers, body, now=now)
            return key if len(key) <= MAX_ID_LENGTH else _digest(key.encode())
        case HookScheme.GITHUB:
            _check(_given(headers, GITHUB_HEADER, "sha256="), secrets, body)
        case HookScheme.SLACK:
            sent_at = _timestamp(headers.get(SLACK_TIME_HEADER, ""), SLACK_TIME_HEADER)
            signed = f"v0:{sent_at}:".encode() + body
            _check(_given(headers, SLACK_HEADER, "v0="), secrets, signed)
            _check_recent(sent_at, now)
        case HookScheme.STRIPE:
            sent_at, given = _stripe_parts(_header(headers, named))
            _check(given, secrets, f"{sent_at}.".encode() + body)
            _check_recent(sent_at, now)
        case HookScheme.TOKEN:
            _check_token(_header(headers, named), secrets)
            return _token_key(headers)
    # Headers with the id of a delivery are not signed here, so they are not the key.
    return _digest(body)


def id_in_body(scheme: HookScheme, body: object, pointer: str | None) -> str | None:
    """Return the id by which the body of a proven request names its delivery; None without one.

    An event that is sent again may have another body, with the number of the try for instance.
    `pointer` says where the sender of this source writes the id; without it only bodies are looked
    at that are those of Slack and Stripe, because elsewhere a field of that name may be the id of
    what the event is about.
    """
    if scheme is HookScheme.STANDARD:
        # The id in its header is signed.
        return None
    named = _known_id(scheme, body) if pointer is None else _value_in(body, pointer)
    if isinstance(named, bool) or not isinstance(named, str | int) or named == "":
        return None
    key = str(named)
    if len(key) <= MAX_ID_LENGTH and key.isprintable():
        return key
    return _digest(key.encode(errors="surrogatepass"))


def _known_id(scheme: HookScheme, body: object) -> object:
    match scheme, body:
        case HookScheme.SLACK, {"type": "event_callback", "event_id": named}:
            return named
        case HookScheme.STRIPE, {"object": "event", "id": named}:
            return named
        case _:
            return None


def _value_in(body: object, pointer: str) -> object:
    try:
        return value_at({"body": body}, pointer)
    except PointerMissing:
        return None


def spend_time(body: bytes) -> None:
    """Take about as long as the check of a signature, for a source that does not exist."""
    _hmac("", body)


def _check(given: Iterable[str], secrets: Sequence[str], signed: bytes) -> None:
    right = [_hmac(secret, signed) for secret in secrets]
    _check_any(
        hmac.compare_digest(one.encode(), other.encode()) for one in given for other in right
    )


def _check_token(given: str, secrets: Sequence[str]) -> None:
    token = given.removeprefix("Bearer ").strip().encode()
    # Digests have one length, so that the comparison does not tell the length of the secret.
    digest = hashlib.sha256(token).digest()
    _check_any(
        hmac.compare_digest(digest, hashlib.sha256(secret.encode()).digest()) for secret in secrets
    )


def _check_any(matches: Iterable[bool]) -> None:
    if not any(list(matches)):
        raise SignatureRefused("no signature is right for this request and secret")


def _check_recent(sent_at: int, now: float) -> None:
    if abs(now - sent_at) > TOLERANCE_SECONDS:
        raise SignatureRefused(f"the request is not from the last {TOLERANCE_SECONDS} seconds")


def _given(headers: Mapping[str, str], name: str, prefix: str) -> list[str]:
    return [_header(headers, name).removeprefix(prefix)]


def _header(headers: Mapping[str, str], name: str) -> str:
    value = headers.get(name, "")
    if not value:
        raise SignatureRefused(f"the header {name} is missing")
    return value


def _stripe_parts(header: str) -> tuple[int, list[str]]:
    pairs = [part.strip().partition("=") for part in header.split(",")[: MAX_SIGNATURES + 1]]
    times = [value for name, _, value in pairs if name == "t"]
    sent_at = _timestamp(times[0] if len(times) == 1 else "", "t")
    return sent_at, [value for name, _, value in pairs if name == "v1"]


def _timestamp(text: str, name: str) -> int:
    if not _TIMESTAMP.fullmatch(text):
        raise SignatureRefused(f"{name} is not in seconds since 1970")
    return int(text)


def _token_key(headers: Mapping[str, str]) -> str | None:
    named = next((headers[name] for name in TOKEN_ID_HEADERS if headers.get(name)), None)
    if named is None or len(named) <= MAX_ID_LENGTH:
        return named
    return _digest(named.encode())


def _hmac(secret: str, signed: bytes) -> str:
    return hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
