"""The signature of requests to HTTP agents.

`X-Overnight-Signature: v1=<hex>` is an HMAC-SHA256 with the agent's secret over the line
`<timestamp>.<method>.<path>.` and the body. The timestamp, in whole seconds since 1970, is in
`X-Overnight-Timestamp`; an agent refuses a request that is older than a minute, so that a request
that was read late or copied starts nothing.
"""

import hashlib
import hmac

TIMESTAMP_HEADER = "X-Overnight-Timestamp"
SIGNATURE_HEADER = "X-Overnight-Signature"


def signature(secret: str, timestamp: int, method: str, path: str, body: bytes) -> str:
    """Return the value of the signature header.

    >>> signature("s" * 16, 1, "GET", "/health", b"")[:15]
    'v1=e479ca3624b1'
    """
    signed = f"{timestamp}.{method}.{path}.".encode() + body
    return "v1=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def signed_headers(
    secret: str, timestamp: int, method: str, path: str, body: bytes
) -> dict[str, str]:
    """Return the headers that prove who sent a request, and when."""
    return {
        TIMESTAMP_HEADER: str(timestamp),
        SIGNATURE_HEADER: signature(secret, timestamp, method, path, body),
    }
