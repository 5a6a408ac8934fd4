"""Signatures of webhooks: what the specification's own example says, and what is refused."""

import pytest

from overnight_server.domain.webhook_signatures import (
    ID_HEADER,
    SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    SignatureRefused,
    parse_secret,
    show_secret,
    signature,
    signed_headers,
    verify,
)

NOW = 1614265330
# The example that libraries for the specification share.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OLD_SECRET = show_secret(b"o" * 32)
OTHER_SECRET = show_secret(b"x" * 64)
MESSAGE_ID = "msg_p5jXN8AQM9LWM0D4loKWxJek"
BODY = b'{"test": 2432232314}'
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def headers(*secrets: str, at: int = NOW) -> dict[str, str]:
    return signed_headers(secrets or (SECRET,), MESSAGE_ID, at, BODY)


def test_a_signature_is_that_of_the_specification() -> None:
    assert signature(SECRET, MESSAGE_ID, NOW, BODY) == SIGNATURE
    assert headers() == {
        ID_HEADER: MESSAGE_ID,
        TIMESTAMP_HEADER: str(NOW),
        SIGNATURE_HEADER: SIGNATURE,
    }


@pytest.mark.parametrize("now", [NOW, NOW + 300, NOW - 300])
def test_a_recent_message_is_accepted(now: int) -> None:
    assert verify([SECRET], headers(), BODY, now=now) == MESSAGE_ID


def test_both_secrets_are_accepted_while_one_replaces_the_other() -> None:
    both = headers(SECRET, OLD_SECRET)

    assert verify([SECRET], both, BODY, now=NOW) == MESSAGE_ID
    assert verify([OLD_SECRET], both, BODY, now=NOW) == MESSAGE_ID
    assert verify([OTHER_SECRET, OLD_SECRET], both, BODY, now=NOW) == MESSAGE_ID


def test_signatures_of_other_versions_are_passed_over() -> None:
    mixed = headers() | {SIGNATURE_HEADER: f"v1a,abc= {SIGNATURE} v2,def="}

    assert verify([SECRET], mixed, BODY, now=NOW) == MESSAGE_ID


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({SIGNATURE_HEADER: SIGNATURE.replace("g0", "h0")}, "no signature is right"),
        ({SIGNATURE_HEADER: SIGNATURE.replace("v1,", "v2,")}, "no signature is right"),
        ({SIGNATURE_HEADER: SIGNATURE.removeprefix("v1,")}, "no signature is right"),
        ({SIGNATURE_HEADER: "v1, é"}, "no signature is right"),
        ({SIGNATURE_HEADER: "x " * 16 + SIGNATURE}, "no signature is right"),
        ({ID_HEADER: "msg_other"}, "no signature is right"),
        ({TIMESTAMP_HEADER: str(NOW + 1)}, "no signature is right"),
        ({TIMESTAMP_HEADER: "yesterday"}, "is not in seconds"),
        ({TIMESTAMP_HEADER: "٣"}, "is not in seconds"),
        ({TIMESTAMP_HEADER: "-1"}, "is not in seconds"),
        ({SIGNATURE_HEADER: ""}, "webhook-signature is missing"),
        ({ID_HEADER: ""}, "webhook-id is missing"),
    ],
)
def test_a_changed_header_is_refused(changed: dict[str, str], reason: str) -> None:
    with pytest.raises(SignatureRefused, match=reason):
        verify([SECRET], headers() | changed, BODY, now=NOW)


@pytest.mark.parametrize("now", [NOW + 301, NOW - 301])
def test_an_old_or_early_message_is_refused(now: int) -> None:
    with pytest.raises(SignatureRefused, match="last 300 seconds"):
        verify([SECRET], headers(), BODY, now=now)


def test_every_changed_byte_of_a_body_is_refused() -> None:
    for place in range(len(BODY)):
        changed = bytearray(BODY)
        changed[place] ^= 1
        with pytest.raises(SignatureRefused):
            verify([SECRET], headers(), bytes(changed), now=NOW)


def test_without_a_known_secret_nothing_is_accepted() -> None:
    for secrets in ([], [OTHER_SECRET]):
        with pytest.raises(SignatureRefused):
            verify(secrets, headers(), BODY, now=NOW)


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_!!!!", show_secret(b"short"), "whsec_é"])
def test_what_is_no_secret_is_refused(secret: str) -> None:
    with pytest.raises(ValueError, match="base 64 of 24 to 64 bytes"):
        parse_secret(secret)
