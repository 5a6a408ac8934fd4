"""The keys that verify tokens: one secret, one public key, or a set of public keys.

A set (JWKS, RFC 7517) is read from a file or fetched from the URL in the settings. If a token names
an unknown key, the set is fetched again, at most once a minute, so that many tokens with invented
key names do not cause many requests.
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

MAX_SET_BYTES = 64 * 1024
FETCH_TIMEOUT_SECONDS = 3.0
REFRESH_SECONDS = 600.0
MIN_FETCH_INTERVAL_SECONDS = 60.0
MAX_ID_LENGTH = 200
# The key type and curves of each algorithm: a public key must never be used as a secret.
KEY_TYPES: Mapping[str, tuple[str, frozenset[str | None]]] = {
    "RS256": ("RSA", frozenset({None})),
    "ES256": ("EC", frozenset({"P-256"})),
    "EdDSA": ("OKP", frozenset({"Ed25519"})),
}


class UnreadableKeys(ValueError):
    """The configured keys cannot be used; the message says why and does not contain them."""


@dataclass
class TokenKeys:
    """Finds the key that a token was signed with."""

    secret: str | None = None
    pem: str | None = None
    fetch: Callable[[], str] | None = None
    clock: Callable[[], float] = time.monotonic
    _key_set: Sequence[Mapping[str, Any]] = ()
    _tried_at: float | None = None
    _lock: Lock = field(default_factory=Lock)

    @classmethod
    def of(cls, secret: str | None, place: str | None) -> "TokenKeys":
        """Return the keys of a secret, of a PEM or JWKS file, or of a JWKS URL."""
        if secret is not None or place is None:
            return cls(secret=secret)
        if place.startswith(("https://", "http://")):
            return cls(fetch=lambda: _fetch_set(place))
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
        token_keys = cls()
        token_keys._key_set = _keys_in(text)
        if not token_keys._key_set:
            raise UnreadableKeys(f"OVERNIGHT_JWT_KEYS={place}: holds neither a PEM key nor a JWKS")
        return token_keys

    def find(self, key_id: object, algorithm: str) -> AllowedPublicKeys | bytes | str | None:
        """Return the key to verify a token with, or None if not exactly one fits.

        The id matters only for a key set. A key set at a URL is fetched again when it is old or
        does not have the id.
        """
        if algorithm == "HS256":
            return self.secret
        if self.pem is not None:
            return self.pem
        if key_id is not None and not (isinstance(key_id, str) and len(key_id) <= MAX_ID_LENGTH):
            return None
        self._refresh(key_id)
        fitting = [key for key in self._key_set if _fits(key, algorithm)]
        chosen = [key for key in fitting if key_id is None or key.get("kid") == key_id]
        # A token without a key id is accepted only if exactly one key fits.
        return jwt.PyJWK(dict(chosen[0]), algorithm=algorithm).key if len(chosen) == 1 else None

    def _refresh(self, key_id: object) -> None:
        if self.fetch is None:
            return
        with self._lock:
            age = None if self._tried_at is None else self.clock() - self._tried_at
            is_known = any(key.get("kid") == key_id for key in self._key_set)
            wait = REFRESH_SECONDS if is_known else MIN_FETCH_INTERVAL_SECONDS
            if age is not None and age < wait:
                return
            self._tried_at = self.clock()
            try:
                # The earlier keys stay valid while the URL cannot be read.
                self._key_set = _keys_in(self.fetch()) or self._key_set
            except (httpx2.HTTPError, ValueError):
                return


def _fits(key: Mapping[str, Any], algorithm: str) -> bool:
    kind, curves = KEY_TYPES[algorithm]
    return (
        key.get("kty") == kind
        and key.get("crv") in curves
        and key.get("use", "sig") == "sig"
        and key.get("alg", algorithm) == algorithm
        and "d" not in key
    )


def _keys_in(text: str) -> list[Mapping[str, Any]]:
    try:
        parsed = json.loads(text)
    except ValueError:
        return []
    keys = parsed.get("keys") if isinstance(parsed, dict) else None
    return [key for key in keys if isinstance(key, dict)] if isinstance(keys, list) else []


def _fetch_set(address: str) -> str:
    with (
        httpx2.Client(timeout=FETCH_TIMEOUT_SECONDS, follow_redirects=False) as client,
        client.stream("GET", address) as response,
    ):
        response.raise_for_status()
        body = b""
        for chunk in response.iter_bytes():
            body += chunk
            if len(body) > MAX_SET_BYTES:
                raise ValueError("the key set is too large")
    return body.decode()
