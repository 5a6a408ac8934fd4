"""API keys: made once, shown once, kept only as hashes.

A key reads `overnight_live_<id>_<secret>_<check>`. The id finds the row, the secret is 32
random bytes in base 62, and the check lets a mistyped or invented key be refused before the
database is asked. With that much randomness a plain SHA-256 is as good as a slow hash.
"""

import hashlib
import secrets
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Connection, cast, func, or_, select, update
from sqlalchemy.dialects import postgresql

from overnight.errors import InvalidRequest, KeyNotFound
from overnight_server.control.users import create_user
from overnight_server.domain.ids import UserId
from overnight_server.domain.plans import PlanTier
from overnight_server.domain.scopes import EVERYTHING, checked, reach
from overnight_server.insight.users import find_user
from overnight_server.store import lanes
from overnight_server.store.db import ActingUser, Db
from overnight_server.store.models import ApiKey
from overnight_server.store.statements import statement

PREFIX = "overnight_live"
ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
ID_LENGTH = 12
SECRET_LENGTH = 43
CHECK_LENGTH = 6
SECRET_BYTES = 32
# Room to change a key in every place that has it, and no more.
GRACE = timedelta(days=1)
LONGEST_GRACE = timedelta(days=30)
# Nobody can keep track of more, and every one of them opens the door.
MOST_KEYS = 100


@dataclass(frozen=True)
class Caller:
    """Whoever presents a good key, or a good token; `key_id` is empty for a token."""

    user_id: UserId
    key_id: str
    scopes: tuple[str, ...]
    is_admin: bool = False

    def may(self, scope: str) -> bool:
        """Whether the key was given this right."""
        return reach(self.scopes, scope)

    @property
    def actor(self) -> str:
        """The name under which this caller's acts are recorded."""
        return f"user:{self.user_id}"

    @property
    def served(self) -> ActingUser:
        """What the database must know to serve this caller and nobody else."""
        return ActingUser(self.user_id, self.actor, self.key_id)


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
    scopes: Collection[str] = (EVERYTHING,),
    expires_in: timedelta | None = None,
    maker: str | None = None,
) -> str:
    """Make a key for a user and return it; this is the only time it can be seen.

    It does not outlive the key with which it is made, if a `maker` is named.
    """
    key = new_key()
    card = Card(name, checked(scopes), expires_in)

    def work(tx: Connection) -> None:
        _check_room(tx, user_id)
        _register(tx, user_id, key, card, no_later_than=_end_of(tx, maker))

    db.atomically(work)
    return key


def rotate(
    db: Db,
    key_id: str,
    *,
    grace: timedelta = GRACE,
    user_id: UserId | None = None,
    maker: str | None = None,
) -> str:
    """Make a key that takes over from another, which stays good for the grace, and return it.

    The new one has the old one's name and rights, and lives as long as the old one was meant to,
    but not longer than the key with which it is made, if a `maker` is named.
    With a `user_id` another user's key looks exactly like none. A key can be rotated once: the
    loser of a race is told there is no such key in force.
    """
    if not timedelta() <= grace <= LONGEST_GRACE:
        raise InvalidRequest("grace", f"{grace}", legal=f"0 seconds to {LONGEST_GRACE.days} days")
    key = new_key()

    def work(tx: Connection) -> None:
        end = func.clock() + grace
        # Read first: the maker may be the old one itself, which is about to be cut short.
        no_later_than = _end_of(tx, maker)
        old = tx.execute(
            update(ApiKey)
            .where(*_in_force(key_id, user_id), ApiKey.replaced_by.is_(None))
            .values(replaced_by=key_id_of(key), expires_at=func.least(ApiKey.expires_at, end))
            .returning(ApiKey.user_id, ApiKey.name, ApiKey.scopes, ApiKey.lifetime)
        ).one_or_none()
        if old is None:
            raise KeyNotFound
        owner = UserId(old.user_id)
        _check_room(tx, owner)
        card = Card(old.name, old.scopes, old.lifetime)
        _register(tx, owner, key, card, no_later_than=no_later_than)

    db.atomically(work)
    return key


def revoke(db: Db, key_id: str, *, user_id: UserId | None = None) -> bool:
    """Make a key useless from this moment; False if there was nothing to revoke.

    With a `user_id` another user's key looks exactly like none.
    """
    ending = (
        update(ApiKey)
        .where(*_in_force(key_id, user_id))
        .values(revoked_at=func.clock())
        .returning(ApiKey.id)
    )
    return db.atomically(lambda tx: tx.execute(ending).first() is not None)


def authenticate(db: Db, key: str) -> Caller | None:
    """Return whom a key belongs to, or None if it opens nothing (any more)."""
    if not is_well_formed(key):
        return None
    return db.atomically(lambda tx: _look_up(tx, key))


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


def _register(
    tx: Connection,
    user_id: UserId,
    key: str,
    card: Card,
    *,
    no_later_than: datetime | None = None,
) -> None:
    """Keep a key's hash; one that is known already stays as it is."""
    end = None if card.expires_in is None else func.clock() + card.expires_in
    tx.execute(
        postgresql.insert(ApiKey)
        .values(
            id=key_id_of(key),
            user_id=user_id,
            name=card.name,
            hash=_hash(key),
            last4=key.split("_")[3][-4:],
            scopes=list(card.scopes),
            # The earlier of the two; of NULLs, which never come, Postgres takes no notice.
            expires_at=func.least(end, cast(no_later_than, ApiKey.expires_at.type)),
            lifetime=card.expires_in,
        )
        .on_conflict_do_nothing()
    )


def _in_force(key_id: str, user_id: UserId | None) -> list[ColumnElement[bool]]:
    """Return what holds of a key that can still be used, and is the user's if one is named."""
    holds = [
        ApiKey.id == key_id,
        ApiKey.revoked_at.is_(None),
        or_(ApiKey.expires_at.is_(None), ApiKey.expires_at > func.clock()),
    ]
    return holds if user_id is None else [*holds, ApiKey.user_id == user_id]


def _end_of(tx: Connection, key_id: str | None) -> datetime | None:
    """Return when a key ends, if it does."""
    return tx.execute(select(ApiKey.expires_at).where(ApiKey.id == key_id)).scalar_one_or_none()


def _check_room(tx: Connection, user_id: UserId) -> None:
    """Refuse one key too many; whoever makes keys for the same user waits until this one is."""
    lanes.lock(tx, [user_id])
    good = select(func.count()).where(
        ApiKey.user_id == user_id,
        ApiKey.revoked_at.is_(None),
        or_(ApiKey.expires_at.is_(None), ApiKey.expires_at > func.clock()),
    )
    if tx.execute(good).scalar_one() >= MOST_KEYS:
        legal = f"at most {MOST_KEYS} keys in force; revoke one first, or rotate without grace"
        raise InvalidRequest("keys", "no more keys can be made", legal=legal)


def _look_up(tx: Connection, key: str) -> Caller | None:
    named = {"key_id": key_id_of(key), "key_hash": _hash(key)}
    row = tx.execute(statement("holder_of_key"), named).one_or_none()
    if row is None:
        return None
    if row.use_is_old:
        tx.execute(statement("record_key_use"), {"key_id": key_id_of(key)})
    return Caller(UserId(row.user_id), key_id_of(key), tuple(row.scopes), row.is_admin)


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
