"""The keys that tokens are checked with: one secret, one public key, or a set of public keys.

A set (JWKS, RFC 7517) is read from a file, or fetched from one address that is fixed in the
settings. A token that names an unknown key has the set fetched again, at most once a minute, so
that a flood of invented names is no flood of requests.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

import httpx2
import jwt
from jwt.algorithms import AllowedPublicKeys

LARGEST = 64 * 1024
PATIENCE_SECONDS = 3.0
FRESH_SECONDS = 600.0
LEAST_PAUSE_SECONDS = 60.0
LONGEST_ID = 200
# What kind of key each algorithm takes: a public key must never serve as a secret.
FITTING: Mapping[str, tuple[str, frozenset[str | None]]] = {
    "RS256": ("RSA", frozenset({None})),
    "ES256": ("EC", frozenset({"P-256"})),
    "EdDSA": ("OKP", frozenset({"Ed25519"})),
}


class UnreadableKeys(ValueError):
    """The keys of the settings cannot be used; the message says why, never what they are."""


@dataclass
class TokenKeys:
    """Where the key of a token is found."""

    secret: str | None = None
    pem: str | None = None
    fetch: Callable[[], str] | None = None
    clock: Callable[[], float] = time.monotonic
    _set: Sequence[Mapping[str, Any]] = ()
    _tried_at: float | None = None
    _lock: Lock = field(default_factory=Lock)

    @classmethod
    def of(cls, secret: str | None, place: str | None) -> "TokenKeys":
        """Take the secret, or what stands at a place: a PEM or JWKS file, or a JWKS address."""
        if secret is not None or place is None:
            return cls(secret=secret)
        if place.startswith(("https://", "http://")):
            return cls(fetch=lambda: _fetched(place))
        try:
            text = Path(place).expanduser().read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError) as error:
            raise UnreadableKeys(f"OVERNIGHT_JWT_KEYS={place}: cannot be read") from error
        if "PRIVATE KEY" in text:
            raise UnreadableKeys(
                f"OVERNIGHT_JWT_KEYS={place}: holds a private key; give the public"
            )
        if text.lstrip().startswith("-----BEGIN PUBLIC KEY"):
            return cls(pem=text)
        known = cls()
        known._set = _keys_in(text)
        if not known._set:
            raise UnreadableKeys(f"OVERNIGHT_JWT_KEYS={place}: holds neither a PEM key nor a JWKS")
        return known

    def find(self, key_id: object, algorithm: str) -> AllowedPublicKeys | bytes | str | None:
        """Return the key that a token was signed with, if it is one of ours and fits."""
        if algorithm == "HS256":
            return self.secret
        if self.pem is not None:
            return self.pem
        if key_id is not None and not (isinstance(key_id, str) and len(key_id) <= LONGEST_ID):
            return None
        self._refresh(key_id)
        fitting = [key for key in self._set if _fits(key, algorithm)]
        chosen = [key for key in fitting if key_id is None or key.get("kid") == key_id]
        # Without a name there must be nothing to choose from.
        return jwt.PyJWK(dict(chosen[0]), algorithm=algorithm).key if len(chosen) == 1 else None

    def _refresh(self, key_id: object) -> None:
        if self.fetch is None:
            return
        with self._lock:
            age = None if self._tried_at is None else self.clock() - self._tried_at
            is_known = any(key.get("kid") == key_id for key in self._set)
            wait = FRESH_SECONDS if is_known else LEAST_PAUSE_SECONDS
            if age is not None and age < wait:
                return
            self._tried_at = self.clock()
            try:
                # What was known stays good while its source is away.
                self._set = _keys_in(self.fetch()) or self._set
            except (httpx2.HTTPError, ValueError):
                return


def _fits(key: Mapping[str, Any], algorithm: str) -> bool:
    kind, curves = FITTING[algorithm]
    return (
        key.get("kty") == kind
        and key.get("crv") in curves
        and key.get("use", "sig") == "sig"
        and key.get("alg", algorithm) == algorithm
        and "d" not in key
    )


def _keys_in(text: str) -> list[Mapping[str, Any]]:
    try:
        found = json.loads(text)
    except ValueError:
        return []
    keys = found.get("keys") if isinstance(found, dict) else None
    return [key for key in keys if isinstance(key, dict)] if isinstance(keys, list) else []


def _fetched(address: str) -> str:
    with (
        httpx2.Client(timeout=PATIENCE_SECONDS, follow_redirects=False) as client,
        client.stream("GET", address) as answer,
    ):
        answer.raise_for_status()
        body = b""
        for part in answer.iter_bytes():
            body += part
            if len(body) > LARGEST:
                raise ValueError("the key set is too large")
    return body.decode()
