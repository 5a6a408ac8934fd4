"""The cookies of the dashboard: the session, how pages look, and the message of the next page.

Over HTTPS the session's cookie has the prefix `__Host-`: no other host can set it. Without HTTPS,
only a browser on the same machine gets a session, because anybody on the way could read the cookie.
"""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hmac import compare_digest
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from overnight_server.control.sessions import LIFETIME, sign
from overnight_server.settings.field_types import is_loopback

HTTPS_NAME = "__Host-overnight"
LOOPBACK_NAME = "overnight"
TOAST = "overnight_toast"
YEAR = 365 * 24 * 3600


@dataclass(frozen=True)
class Toast:
    """What an act has done, shown once on the next page, with the act that takes it back."""

    text: str
    kind: str = "ok"
    undo: str = ""
    undo_fields: Mapping[str, str] | None = None


def is_secure(request: Request) -> bool:
    """Return whether the browser has called with HTTPS."""
    return request.url.scheme == "https"


def may_keep_session(request: Request) -> bool:
    """Return whether a session's cookie is safe: with HTTPS, or on the same machine."""
    host = request.headers.get("host", "")
    return is_secure(request) or is_loopback(urlsplit(f"//{host}").hostname or "")


def read_session_cookie(request: Request) -> str:
    """Return the value of the session's cookie, or an empty string."""
    return request.cookies.get(HTTPS_NAME if is_secure(request) else LOOPBACK_NAME, "")


def set_session_cookie(request: Request, response: Response, value: str) -> None:
    """Send the session's cookie to the browser."""
    secure = is_secure(request)
    response.set_cookie(
        HTTPS_NAME if secure else LOOPBACK_NAME,
        value,
        max_age=int(LIFETIME.total_seconds()),
        secure=secure,
        httponly=True,
        samesite="lax",
    )


def delete_session_cookie(request: Request, response: Response) -> None:
    """Delete the session's cookie."""
    secure = is_secure(request)
    name = HTTPS_NAME if secure else LOOPBACK_NAME
    response.delete_cookie(name, secure=secure, httponly=True, samesite="lax")


def set_choice(request: Request, response: Response, name: str, value: str) -> None:
    """Keep a choice of how pages look; scripts may read it."""
    secure = is_secure(request)
    response.set_cookie(
        f"overnight_{name}", value, max_age=YEAR, secure=secure, httponly=False, samesite="lax"
    )


def read_choice(request: Request, name: str) -> str:
    """Return a choice of how pages look, or an empty string."""
    return request.cookies.get(f"overnight_{name}", "")


def set_toast(response: Response, secret: str, toast: Toast) -> None:
    """Keep a message for the next page, signed so that no other site can write one."""
    body = urlsafe_b64encode(json.dumps(asdict(toast)).encode()).decode()
    value = f"{body}.{sign(secret, body)}"
    response.set_cookie(TOAST, value, max_age=60, httponly=True, samesite="lax")


def read_toast(request: Request, secret: str) -> Toast | None:
    """Return the message for this page, or None."""
    body, _, signature = request.cookies.get(TOAST, "").partition(".")
    if not body or not compare_digest(signature.encode(), sign(secret, body).encode()):
        return None
    try:
        return Toast(**json.loads(urlsafe_b64decode(body)))
    except (Base64Error, ValueError, TypeError):
        return None


def delete_toast(response: Response) -> None:
    """Delete the message once a page has shown it."""
    response.delete_cookie(TOAST, httponly=True, samesite="lax")
