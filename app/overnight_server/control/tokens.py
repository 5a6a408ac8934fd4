"""Verify JSON web tokens (RFC 7519) of another issuer, and find the user that they name.

Algorithms, keys, issuer and audience come from the settings, never from the token (RFC 8725). A
token may only select one of the configured keys. Every fault has the same result: no caller.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import jwt

from overnight.models.scopes import SCOPES
from overnight_server.control.keys import Caller
from overnight_server.control.token_keys import TokenKeys
from overnight_server.insight.users import find_identity
from overnight_server.settings import Settings
from overnight_server.store.db import Db

MAX_TOKEN_LENGTH = 8 * 1024
MAX_SUBJECT_LENGTH = 200
# The last second of the year 9999, after which Python has no dates.
LAST_SECOND = 253_402_300_799
SHAPE = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
REQUIRED = ("exp", "nbf", "iss", "aud", "sub")
# Headers with which a token would choose its own key or its own rules.
REFUSED = frozenset({"jwk", "jku", "x5u", "x5c", "x5t", "x5t#S256", "crit", "b64", "zip", "enc"})
TYPES = frozenset({"JWT", "AT+JWT"})


@dataclass(frozen=True)
class JwtVerifier:
    """Verifies JSON Web Tokens by the algorithms, issuer, audience and keys of the settings."""

    algorithms: tuple[str, ...]
    issuer: str
    audience: str
    leeway: float
    keys: TokenKeys

    @classmethod
    def of(cls, settings: Settings) -> "JwtVerifier | None":
        """Return the verifier that the settings describe; None if they accept no tokens."""
        if not settings.jwt_algorithms:
            return None
        # The settings require both whenever algorithms are set.
        return cls(
            algorithms=settings.jwt_algorithms,
            issuer=settings.jwt_issuer or "",
            audience=settings.jwt_audience or "",
            leeway=settings.jwt_leeway,
            keys=TokenKeys.of(settings.jwt_secret, settings.jwt_keys),
        )

    def caller(self, db: Db, token: str) -> Caller | None:
        """Return the caller that a token names, or None if the token is not valid."""
        claims = self.claims(token)
        subject = claims.get("sub")
        if not isinstance(subject, str) or not 0 < len(subject) <= MAX_SUBJECT_LENGTH:
            return None
        if "\0" in subject:
            return None
        user = find_identity(db, subject)
        if user is None or user.is_disabled:
            return None
        # By the database's clock: that of this host may be wrong.
        if not self._is_current(claims, user.read_at.timestamp()):
            return None
        ends_at = datetime.fromtimestamp(min(int(claims["exp"]), LAST_SECOND), UTC)
        return Caller(
            user.user_id,
            "",
            scopes_in(claims),
            user.is_admin,
            token_subject=subject,
            ends_at=ends_at,
        )

    def claims(self, token: str) -> Mapping[str, Any]:
        """Return the claims of a token, valid but for its times, or an empty mapping."""
        if len(token) > MAX_TOKEN_LENGTH or not SHAPE.fullmatch(token):
            return {}
        try:
            header = jwt.get_unverified_header(token)
            algorithm = self._algorithm(header)
            if algorithm is None:
                return {}
            key = self.keys.find(header.get("kid"), algorithm)
            if key is None:
                return {}
            return jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                issuer=self.issuer,
                audience=self.audience,
                options={
                    "require": list(REQUIRED),
                    "verify_signature": True,
                    # `_is_current` verifies the times.
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError):
            # Besides PyJWTError: dates out of range and deep nesting raise built-in errors.
            return {}

    def _is_current(self, claims: Mapping[str, Any], now: float) -> bool:
        """Whether a token is neither too early nor too late, in seconds since 1970."""
        try:
            begins = max(int(claims["nbf"]), int(claims.get("iat", claims["nbf"])))
            return begins <= now + self.leeway and int(claims["exp"]) > now - self.leeway
        except (ValueError, TypeError, OverflowError):
            return False

    def _algorithm(self, header: Mapping[str, Any]) -> str | None:
        algorithm = header.get("alg")
        if algorithm not in self.algorithms or REFUSED & header.keys():
            return None
        kind = header.get("typ", "JWT")
        return algorithm if isinstance(kind, str) and kind.upper() in TYPES else None


def scopes_in(claims: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the scopes of a token that this service knows; others are ignored.

    >>> scopes_in({"scope": "openid tasks:read"})
    ('tasks:read',)
    """
    scopes = claims.get("scopes", claims.get("scope", ()))
    names = scopes.split() if isinstance(scopes, str) else scopes
    if not isinstance(names, list | tuple):
        return ()
    return tuple(name for name in names if isinstance(name, str) and name in SCOPES)
