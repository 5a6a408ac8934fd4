"""Senders of webhooks: what GitHub, Slack and others would send, written apart from the checks."""

import hashlib
import hmac
from collections.abc import Mapping

from overnight_server.domain.hook_signatures import HookScheme
from overnight_server.domain.webhook_signatures import signed_headers

#: A secret that is legal for each scheme, and another one.
SECRETS: Mapping[HookScheme, str] = {
    **dict.fromkeys(HookScheme, "a secret of sixteen characters"),
    HookScheme.STANDARD: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
}
OTHER_SECRETS: Mapping[HookScheme, str] = {
    **dict.fromkeys(HookScheme, "another secret of some length"),
    HookScheme.STANDARD: "whsec_NfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
}


def signed(
    scheme: HookScheme, secret: str, body: bytes, *, at: float, message_id: str = "msg_1"
) -> dict[str, str]:
    """Return the headers that a sender of this scheme adds to a body."""
    time = int(at)
    match scheme:
        case HookScheme.STANDARD:
            return signed_headers([secret], message_id, time, body)
        case HookScheme.GITHUB:
            return {
                "x-hub-signature-256": f"sha256={_hex(secret, body)}",
                "x-github-delivery": message_id,
                "x-github-event": "pull_request",
            }
        case HookScheme.SLACK:
            return {
                "x-slack-request-timestamp": str(time),
                "x-slack-signature": f"v0={_hex(secret, b'v0:%d:' % time + body)}",
            }
        case HookScheme.STRIPE:
            v0, v1 = _hex("no secret", body), _hex(secret, b"%d." % time + body)
            return {"stripe-signature": f"t={time},v0={v0},v1={v1}"}
        case HookScheme.TOKEN:
            return {"x-webhook-token": secret, "webhook-id": message_id}


def _hex(secret: str, text: bytes) -> str:
    return hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()
