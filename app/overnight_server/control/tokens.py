"""Tokens that somebody else made out (JWT, RFC 7519): which are good, and for whom.

What decides is fixed in the settings, never taken from the token: the algorithms, the keys, who
makes tokens out and for whom (RFC 8725). A token may only say which of the known keys it was signed
with. Every fault, whatever it is, comes to the same answer: nobody.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jwt

from overnight_server.control.keys import Caller
from overnight_server.control.token_keys import TokenKeys
from overnight_server.domain.scopes import SCOPES
from overnight_server.insight.users import find_identity
from overnight_server.settings import Settings
from overnight_server.store.db import Db

LONGEST = 8 * 1024
LONGEST_SUBJECT = 200
SHAPE = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
REQUIRED = ("exp", "nbf", "iss", "aud", "sub")
# Headers by which a token would choose its own key or its own rules.
REFUSED = frozenset({"jwk", "jku", "x5u", "x5c", "x5t", "x5t#S256", "crit", "b64", "zip", "enc"})
TYPES = frozenset({"JWT", "AT+JWT"})


@dataclass(frozen=True)
class Tokens:
    """What makes a token good."""

    algorithms: tuple[str, ...]
    issuer: str
    audience: str
    leeway: float
    keys: TokenKeys

    @classmethod
    def of(cls, settings: Settings) -> "Tokens | None":
        """Take the rules from the settings; None if tokens are not accepted."""
        if not settings.jwt_algorithms:
            return None
        # The settings refuse tokens without these.
        return cls(
            algorithms=settings.jwt_algorithms,
            issuer=settings.jwt_issuer or "",
            audience=settings.jwt_audience or "",
            leeway=settings.jwt_leeway,
            keys=TokenKeys.of(settings.jwt_secret, settings.jwt_keys),
        )

    def caller(self, db: Db, token: str) -> Caller | None:
        """Return whom a token was made out to, or None if it opens nothing."""
        claims = self.claims(token)
        subject = claims.get("sub")
        if not isinstance(subject, str) or not 0 < len(subject) <= LONGEST_SUBJECT:
            return None
        if "\0" in subject:
            return None
        found = find_identity(db, subject)
        if found is None or found.is_disabled:
            return None
        return Caller(found.user_id, "", scopes_in(claims), found.is_admin)

    def claims(self, token: str) -> Mapping[str, Any]:
        """Return what a good token says, or nothing."""
        if len(token) > LONGEST or not SHAPE.fullmatch(token):
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
                leeway=self.leeway,
                options={"require": list(REQUIRED), "verify_signature": True},
            )
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError):
            # What no library names an error of its own: numbers beyond time, nests without end.
            return {}

    def _algorithm(self, header: Mapping[str, Any]) -> str | None:
        algorithm = header.get("alg")
        if algorithm not in self.algorithms or REFUSED & header.keys():
            return None
        kind = header.get("typ", "JWT")
        return algorithm if isinstance(kind, str) and kind.upper() in TYPES else None


def scopes_in(claims: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the rights a token names; those of other services mean nothing here.

    >>> scopes_in({"scope": "openid tasks:read"})
    ('tasks:read',)
    """
    said = claims.get("scopes", claims.get("scope", ()))
    words = said.split() if isinstance(said, str) else said
    if not isinstance(words, list | tuple):
        return ()
    return tuple(word for word in words if isinstance(word, str) and word in SCOPES)
