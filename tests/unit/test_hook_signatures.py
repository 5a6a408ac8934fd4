"""Schemes of webhooks: each accepts its own signature, and nothing else."""

import pytest

from overnight_server.domain.hook_signatures import (
    HookScheme,
    check_secret,
    new_secret,
    verify_hook,
)
from overnight_server.domain.webhook_signatures import SignatureRefused
from tests.support.hook_senders import OTHER_SECRETS, SECRETS, signed

NOW = 1_800_000_000
BODY = b'{"action": "opened"}'
EVERY_SCHEME = pytest.mark.parametrize("scheme", HookScheme)
SIGNED = pytest.mark.parametrize("scheme", [each for each in HookScheme if each != "token"])
TIMED = pytest.mark.parametrize("scheme", ["standard", "slack", "stripe"])


def key_of(
    scheme: HookScheme, headers: dict[str, str], body: bytes = BODY, *secrets: str
) -> str | None:
    return verify_hook(scheme, secrets or [SECRETS[scheme]], headers, body, now=NOW)


def own(scheme: HookScheme, at: float = NOW, **changes: str) -> dict[str, str]:
    return signed(scheme, SECRETS[scheme], BODY, at=at, **changes)


@EVERY_SCHEME
def test_a_request_with_the_signature_of_its_scheme_is_accepted(scheme: HookScheme) -> None:
    assert key_of(scheme, own(scheme)) is not None


@EVERY_SCHEME
def test_either_secret_is_accepted_while_one_replaces_the_other(scheme: HookScheme) -> None:
    assert key_of(scheme, own(scheme), BODY, OTHER_SECRETS[scheme], SECRETS[scheme]) is not None


@EVERY_SCHEME
def test_a_request_with_another_secret_is_refused(scheme: HookScheme) -> None:
    with pytest.raises(SignatureRefused):
        key_of(scheme, own(scheme), BODY, OTHER_SECRETS[scheme])


@EVERY_SCHEME
def test_a_request_without_a_signature_is_refused(scheme: HookScheme) -> None:
    for name in own(scheme):
        headers = own(scheme)
        del headers[name]
        if name in {"x-github-delivery", "x-github-event"} or (scheme, name) == (
            "token",
            "webhook-id",
        ):
            assert key_of(scheme, headers) is None or scheme == "github"
            continue
        with pytest.raises(SignatureRefused):
            key_of(scheme, headers)


@EVERY_SCHEME
def test_the_signature_of_another_scheme_is_refused(scheme: HookScheme) -> None:
    for other in HookScheme:
        if other != scheme:
            with pytest.raises(SignatureRefused):
                key_of(scheme, signed(other, SECRETS[other], BODY, at=NOW))


@SIGNED
def test_a_changed_body_is_refused(scheme: str) -> None:
    kind = HookScheme(scheme)
    with pytest.raises(SignatureRefused):
        key_of(kind, own(kind), BODY + b" ")


@TIMED
@pytest.mark.parametrize("seconds", [-301, 301])
def test_a_request_from_another_time_is_refused(scheme: str, seconds: int) -> None:
    kind = HookScheme(scheme)
    with pytest.raises(SignatureRefused, match="300 seconds"):
        key_of(kind, own(kind, at=NOW + seconds))


@TIMED
def test_a_time_that_was_changed_is_refused(scheme: str) -> None:
    kind = HookScheme(scheme)
    old = own(kind, at=NOW - 1000)
    renewed = {name: value.replace(str(NOW - 1000), str(NOW)) for name, value in old.items()}
    assert renewed != old
    with pytest.raises(SignatureRefused, match="no signature is right"):
        key_of(kind, renewed)


@TIMED
@pytest.mark.parametrize("time", ["", "soon", "-1", "1e9", "٣", "9" * 13])
def test_a_time_that_is_no_number_is_refused(scheme: str, time: str) -> None:
    kind = HookScheme(scheme)
    odd = {name: value.replace(str(NOW), time) for name, value in own(kind).items()}
    with pytest.raises(SignatureRefused):
        key_of(kind, odd)


@pytest.mark.parametrize("scheme", ["github", "slack", "stripe"])
def test_whoever_repeats_a_request_cannot_give_it_another_key(scheme: str) -> None:
    kind = HookScheme(scheme)
    repeated = own(kind, message_id="another") | {"x-github-event": "push", "webhook-id": "new"}
    assert key_of(kind, repeated) == key_of(kind, own(kind))


def test_standard_webhooks_have_the_key_that_is_signed() -> None:
    assert key_of(HookScheme.STANDARD, own(HookScheme.STANDARD)) == "msg_1"
    with pytest.raises(SignatureRefused):
        key_of(HookScheme.STANDARD, own(HookScheme.STANDARD) | {"webhook-id": "msg_2"})


def test_a_sender_with_a_token_may_name_its_delivery() -> None:
    assert key_of(HookScheme.TOKEN, own(HookScheme.TOKEN)) == "msg_1"
    assert key_of(HookScheme.TOKEN, {"x-webhook-token": SECRETS[HookScheme.TOKEN]}) is None
    long = own(HookScheme.TOKEN, message_id="x" * 1000)
    assert (key_of(HookScheme.TOKEN, long) or "").startswith("sha256:")


def test_a_source_may_name_the_header() -> None:
    secret = SECRETS[HookScheme.TOKEN]
    for value in (secret, f"Bearer {secret}"):
        sent = {"authorization": value}
        verify_hook(HookScheme.TOKEN, [secret], sent, BODY, now=NOW, header="authorization")
    with pytest.raises(SignatureRefused, match="x-gitlab-token is missing"):
        verify_hook(
            HookScheme.TOKEN,
            [secret],
            own(HookScheme.TOKEN),
            BODY,
            now=NOW,
            header="x-gitlab-token",
        )


@EVERY_SCHEME
def test_a_new_secret_is_a_legal_one(scheme: HookScheme) -> None:
    check_secret(scheme, new_secret(scheme))
    assert new_secret(scheme) != new_secret(scheme)


@EVERY_SCHEME
@pytest.mark.parametrize(
    "secret", ["", "short", "x" * 201, "sixteen chars ÄÖ", "sixteen chars\n\n\n"]
)
def test_a_secret_that_cannot_be_used_is_refused(scheme: HookScheme, secret: str) -> None:
    with pytest.raises(ValueError, match="is not"):
        check_secret(scheme, secret)
