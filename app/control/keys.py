"""API keys: made once, shown once, kept only as hashes.

A key reads `overnight_live_<id>_<secret>_<check>`. The id finds the row, the secret is 32
random bytes in base 62, and the check lets a mistyped or invented key be refused before the
database is asked. With that much randomness a plain SHA-256 is as good as a slow hash.
"""

import hashlib
import hmac
import secrets
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import ColumnElement, Connection, func, or_, select, update
from sqlalchemy.dialects import postgresql

from app.control.users import create_user
from app.domain.ids import UserId
from app.domain.plans import PlanTier
from app.insight.users import find_user
from app.store.db import Db
from app.store.models import ApiKey, User

PREFIX = "overnight_live"
ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
ID_LENGTH = 12
SECRET_LENGTH = 43
CHECK_LENGTH = 6
SECRET_BYTES = 32
# Noting every use would make each read a write.
USE_NOTED_EVERY = timedelta(minutes=1)
EVERYTHING = "*"


@dataclass(frozen=True)
class Caller:
    """Whoever presents a good key."""

    user_id: UserId
    key_id: str
    scopes: tuple[str, ...]
    is_admin: bool = False

    def may(self, scope: str) -> bool:
        """Whether the key was given this right."""
        return EVERYTHING in self.scopes or scope in self.scopes


@dataclass(frozen=True)
class Card:
    """What is written beside a key: its name, its rights and how long it lives."""

    name: str
    scopes: Sequence[str] = (EVERYTHING,)
    expires_in: timedelta | None = None


class UnusableKey(ValueError):
    """A key that cannot be seeded: damaged, revoked, or another user's. It is not repeated."""


def issue(
    db: Db,
    user_id: UserId,
    *,
    name: str,
    scopes: Sequence[str] = (EVERYTHING,),
    expires_in: timedelta | None = None,
) -> str:
    """Make a key for a user and return it; this is the only time it can be seen."""
    key = new_key()
    db.atomically(lambda tx: _register(tx, user_id, key, Card(name, scopes, expires_in)))
    return key


def authenticate(db: Db, key: str) -> Caller | None:
    """Return whom a key belongs to, or None if it opens nothing (any more)."""
    if not is_well_formed(key):
        return None
    return db.atomically(lambda tx: _look_up(tx, key))


def revoke(db: Db, key_id: str) -> bool:
    """Make a key useless from this moment; False if there was nothing to revoke."""
    statement = (
        update(ApiKey)
        .where(ApiKey.id == key_id, ApiKey.revoked_at.is_(None))
        .values(revoked_at=func.clock())
        .returning(ApiKey.id)
    )
    return db.atomically(lambda tx: tx.execute(statement).first() is not None)


def seed_local_user(db: Db, *, name: str, plan: PlanTier, key: str | None) -> str:
    """Make sure the user exists and holds this very key (or a new one); return the key.

    Safe to repeat: a second call with the same name and key changes nothing.
    """
    key = key or new_key()
    if not is_well_formed(key):
        raise UnusableKey("the local key is damaged; delete it and a new one is made")
    user_id = find_user(db, name) or create_user(db, name=name, plan=plan)
    db.atomically(lambda tx: _register(tx, user_id, key, Card("local")))
    holder = authenticate(db, key)
    if holder is None or holder.user_id != user_id:
        raise UnusableKey("the local key was revoked or is another user's; delete it")
    return key


def new_key() -> str:
    """Make up a key; nobody knows it yet."""
    key_id = "".join(secrets.choice(ALPHABET) for _ in range(ID_LENGTH))
    number = int.from_bytes(secrets.token_bytes(SECRET_BYTES))
    body = f"{PREFIX}_{key_id}_{_base62(number, SECRET_LENGTH)}"
    return f"{body}_{_check(body)}"


def key_id_of(key: str) -> str:
    """Return the public part of a well-formed key, by which it is found and revoked."""
    return key.split("_")[2]


def is_well_formed(key: str) -> bool:
    """Whether a text can be a key of ours, by its shape and its check alone."""
    body, _, check = key.rpartition("_")
    parts = body.removeprefix(f"{PREFIX}_").split("_")
    return (
        key.isascii()
        and body.startswith(f"{PREFIX}_")
        and [len(part) for part in parts] == [ID_LENGTH, SECRET_LENGTH]
        and check == _check(body)
    )


def _register(tx: Connection, user_id: UserId, key: str, card: Card) -> None:
    """Keep a key's hash; one that is known already stays as it is."""
    tx.execute(
        postgresql.insert(ApiKey)
        .values(
            id=key_id_of(key),
            user_id=user_id,
            name=card.name,
            hash=_hash(key),
            last4=key.split("_")[3][-4:],
            scopes=list(card.scopes),
            expires_at=None if card.expires_in is None else func.clock() + card.expires_in,
        )
        .on_conflict_do_nothing()
    )


def _look_up(tx: Connection, key: str) -> Caller | None:
    row = tx.execute(
        select(
            ApiKey.hash,
            ApiKey.user_id,
            ApiKey.scopes,
            User.is_admin,
            _use_is_old().label("use_is_old"),
        )
        .join(User, User.id == ApiKey.user_id)
        .where(
            ApiKey.id == key_id_of(key),
            ApiKey.revoked_at.is_(None),
            or_(ApiKey.expires_at.is_(None), ApiKey.expires_at > func.clock()),
        )
    ).first()
    if row is None or not hmac.compare_digest(row.hash, _hash(key)):
        return None
    if row.use_is_old:
        _note_use(tx, key_id_of(key))
    return Caller(UserId(row.user_id), key_id_of(key), tuple(row.scopes), row.is_admin)


def _use_is_old() -> ColumnElement[bool]:
    return or_(ApiKey.last_used_at.is_(None), ApiKey.last_used_at < func.clock() - USE_NOTED_EVERY)


def _note_use(tx: Connection, key_id: str) -> None:
    # Asked again in the update: of many requests at once, one writes.
    tx.execute(
        update(ApiKey).where(ApiKey.id == key_id, _use_is_old()).values(last_used_at=func.clock())
    )


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _check(body: str) -> str:
    return _base62(zlib.crc32(body.encode()), CHECK_LENGTH)


def _base62(number: int, length: int) -> str:
    digits = []
    for _ in range(length):
        number, digit = divmod(number, len(ALPHABET))
        digits.append(ALPHABET[digit])
    return "".join(reversed(digits))
