"""API keys: issue, rotate, revoke and authenticate; only their hashes are stored.

A key is `overnight_live_<id>_<secret>_<check>`. The id finds the row, the secret is 32 random bytes
in base 62, and the checksum lets a mistyped or invented key be refused without a database query. A
secret with so much randomness needs no slow hash; SHA-256 is enough.
"""

import hashlib
import secrets
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Connection, cast, func, or_, select, update
from sqlalchemy.dialects import postgresql

from overnight.errors import InvalidRequest, KeyNotFound, Unauthenticated
from overnight.models.enums import PlanTier
from overnight.models.scopes import ADMIN, EVERYTHING
from overnight_server.control.users import appoint_admin, create_user
from overnight_server.domain.ids import UserId
from overnight_server.domain.scopes import checked, reach, within
from overnight_server.insight.users import find_user
from overnight_server.store import lanes
from overnight_server.store.db import ActingUser, Db
from overnight_server.store.models import ApiKeyRow
from overnight_server.store.statements import statement

PREFIX = "overnight_live"
ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
ID_LENGTH = 12
SECRET_LENGTH = 43
CHECK_LENGTH = 6
SECRET_BYTES = 32
# How long a rotated key stays valid, so that it can be replaced everywhere.
GRACE = timedelta(days=1)
MAX_GRACE = timedelta(days=30)
# How many valid keys a user may have.
MAX_KEYS = 100


@dataclass(frozen=True)
class Caller:
    """The user of a request, as its key or token proves; `key_id` is empty for a token.

    `ends_at` is when a token expires. The end of a key is read again where it matters, because a
    rotation may have shortened it.
    """

    user_id: UserId
    key_id: str
    scopes: tuple[str, ...]
    is_admin: bool = False
    token_subject: str = ""
    ends_at: datetime | None = None

    def may(self, scope: str) -> bool:
        """Return whether the key has this scope."""
        return reach(self.scopes, scope)

    @property
    def is_operator(self) -> bool:
        """Whether the user is an admin and the key has the scope of admins."""
        return self.is_admin and self.may(ADMIN)

    @property
    def actor(self) -> str:
        """The name under which this caller's acts are recorded."""
        return f"user:{self.user_id}"

    @property
    def credential(self) -> str:
        """What the request was authenticated with; credentials that it makes are marked with it.

        `key:` and the key's id, `token:` and the token's subject, or `no-auth`.
        """
        if self.key_id:
            return f"key:{self.key_id}"
        return f"token:{self.token_subject}" if self.token_subject else "no-auth"

    @property
    def served(self) -> ActingUser:
        """The user, actor and key that a database transaction of this caller acts for."""
        return ActingUser(self.user_id, self.actor, self.key_id)


@dataclass(frozen=True)
class KeyDescription:
    """The name, scopes and lifetime of a key."""

    name: str
    scopes: Sequence[str] = (EVERYTHING,)
    expires_in: timedelta | None = None


class UnusableKey(ValueError):
    """A local key that is malformed, revoked or owned by another user; the message omits it."""


def issue(
    db: Db,
    user_id: UserId,
    *,
    name: str,
    scopes: Collection[str] = (EVERYTHING,),
    expires_in: timedelta | None = None,
    maker: Caller | None = None,
) -> str:
    """Store the hash of a new key for a user and return the key; it cannot be shown again.

    It expires no later than the credential of `maker`, has no more scopes, and is marked with it;
    a revoked key takes the keys that were made with it along. Without `maker`, an operator issues
    the key in the database. Raises InvalidRequest for a scope that is unknown or that the maker
    lacks, and if the user has the largest number of keys; Unauthenticated if the maker has ended.
    """
    key = new_key()
    description = KeyDescription(name, checked(scopes), expires_in)
    if maker is not None and not within(description.scopes, maker.scopes):
        legal = f"those of this key: {', '.join(maker.scopes)}"
        raise InvalidRequest("scopes", "include scopes that this key lacks", legal=legal)

    def work(tx: Connection) -> None:
        _check_key_count(tx, user_id)
        made_by = None if maker is None else maker.credential
        _register(tx, user_id, key, description, no_later_than=_end_of(tx, maker), made_by=made_by)

    db.atomically(work)
    return key


def rotate(
    db: Db,
    key_id: str,
    *,
    grace: timedelta = GRACE,
    user_id: UserId | None = None,
    maker: Caller | None = None,
) -> str:
    """Issue a key that replaces another, which stays valid for the grace, and return the new key.

    The new key has the name, scopes and lifetime of the old one, but does not outlive the
    credential of `maker`, and is marked with it. A key that rotates itself passes on the mark of
    its own maker. Keys that were made with the old one belong to the new one. A key can be rotated
    once. Raises KeyNotFound if the key is not valid, was rotated already or has a scope that the
    maker lacks, and with a `user_id` if that user has no such key.
    """
    if not timedelta() <= grace <= MAX_GRACE:
        raise InvalidRequest("grace", f"{grace}", legal=f"0 seconds to {MAX_GRACE.days} days")
    key = new_key()

    def work(tx: Connection) -> None:
        end = func.clock() + grace
        # Read before the update, which shortens the old key: the maker may be the old key.
        no_later_than = _end_of(tx, maker)
        old = tx.execute(
            update(ApiKeyRow)
            .where(*_is_valid(key_id, user_id), ApiKeyRow.replaced_by.is_(None))
            .values(replaced_by=key_id_of(key), expires_at=func.least(ApiKeyRow.expires_at, end))
            .returning(
                ApiKeyRow.user_id,
                ApiKeyRow.name,
                ApiKeyRow.scopes,
                ApiKeyRow.lifetime,
                ApiKeyRow.made_by,
            )
        ).one_or_none()
        if old is None or not (maker is None or within(old.scopes, maker.scopes)):
            raise KeyNotFound
        owner = UserId(old.user_id)
        _check_key_count(tx, owner)
        description = KeyDescription(old.name, old.scopes, old.lifetime)
        made_by = old.made_by
        if maker is not None and maker.key_id != key_id:
            made_by = maker.credential
        _register(tx, owner, key, description, no_later_than=no_later_than, made_by=made_by)
        params = {"old_key": key_id, "new_key": key_id_of(key)}
        tx.execute(statement("hand_over_made_keys"), params)

    db.atomically(work)
    return key


def revoke(db: Db, key_id: str, *, user_id: UserId | None = None) -> bool:
    """Revoke a key and all keys made with it at once; return False if there is no such valid key.

    With a `user_id`, another user's key is not found.
    """
    ending = (
        update(ApiKeyRow)
        .where(*_is_valid(key_id, user_id))
        .values(revoked_at=func.clock())
        .returning(ApiKeyRow.id)
    )
    return db.atomically(lambda tx: tx.execute(ending).first() is not None)


def authenticate(db: Db, key: str) -> Caller | None:
    """Return the caller that a key proves, or None if the key is not valid."""
    if not is_well_formed(key):
        return None
    return db.atomically(lambda tx: _look_up(tx, key))


def seed_local_user(db: Db, *, name: str, plan: PlanTier, key: str | None) -> str:
    """Create the local user, an admin, and its key if they do not exist; return the key.

    A second call with the same name and key changes nothing. Raises UnusableKey if the key is
    malformed, revoked or belongs to another user.
    """
    key = key or new_key()
    if not is_well_formed(key):
        raise UnusableKey("the local key is damaged; delete it and a new one is made")
    user_id = find_user(db, name) or create_user(db, name=name, plan=plan, is_admin=True)
    # A user that an older release created may not be an admin yet.
    appoint_admin(db, user_id, is_admin=True)
    db.atomically(lambda tx: _register(tx, user_id, key, KeyDescription("local")))
    holder = authenticate(db, key)
    if holder is None or holder.user_id != user_id:
        raise UnusableKey("the local key was revoked or belongs to another user; delete it")
    return key


def new_key() -> str:
    """Return a new random key; it is not stored yet."""
    key_id = "".join(secrets.choice(ALPHABET) for _ in range(ID_LENGTH))
    number = int.from_bytes(secrets.token_bytes(SECRET_BYTES))
    body = f"{PREFIX}_{key_id}_{_base62(number, SECRET_LENGTH)}"
    return f"{body}_{_check(body)}"


def key_id_of(key: str) -> str:
    """Return the id of a well-formed key, by which it is found and revoked."""
    return key.split("_")[2]


def is_well_formed(key: str) -> bool:
    """Return whether a text has the shape and checksum of a key."""
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
    description: KeyDescription,
    *,
    no_later_than: datetime | None = None,
    made_by: str | None = None,
) -> None:
    """Store a key's hash; an existing key is not changed."""
    end = None if description.expires_in is None else func.clock() + description.expires_in
    tx.execute(
        postgresql.insert(ApiKeyRow)
        .values(
            id=key_id_of(key),
            user_id=user_id,
            name=description.name,
            hash=_hash(key),
            last4=key.split("_")[3][-4:],
            scopes=list(description.scopes),
            # The earlier of the two; `least` ignores NULL, which means never.
            expires_at=func.least(end, cast(no_later_than, ApiKeyRow.expires_at.type)),
            lifetime=description.expires_in,
            made_by=made_by,
        )
        .on_conflict_do_nothing()
    )


def _is_valid(key_id: str, user_id: UserId | None) -> list[ColumnElement[bool]]:
    """Return the conditions of a valid key, and of its user if one is given."""
    conditions = [
        ApiKeyRow.id == key_id,
        ApiKeyRow.revoked_at.is_(None),
        or_(ApiKeyRow.expires_at.is_(None), ApiKeyRow.expires_at > func.clock()),
    ]
    return conditions if user_id is None else [*conditions, ApiKeyRow.user_id == user_id]


def _end_of(tx: Connection, maker: Caller | None) -> datetime | None:
    """Return when a credential expires, if it does; raise Unauthenticated if it has ended.

    A key is locked, so that a revocation comes before this transaction, or after it and then finds
    what was made.
    """
    if maker is None or not maker.key_id:
        return None if maker is None else maker.ends_at
    valid_key = select(ApiKeyRow.expires_at).where(*_is_valid(maker.key_id, maker.user_id))
    row = tx.execute(valid_key.with_for_update(read=True)).one_or_none()
    if row is None:
        raise Unauthenticated
    end: datetime | None = row.expires_at
    return end


def _check_key_count(tx: Connection, user_id: UserId) -> None:
    """Raise InvalidRequest if the user has as many valid keys as allowed; locks the lane."""
    lanes.lock(tx, [user_id])
    valid_keys = select(func.count()).where(
        ApiKeyRow.user_id == user_id,
        ApiKeyRow.revoked_at.is_(None),
        or_(ApiKeyRow.expires_at.is_(None), ApiKeyRow.expires_at > func.clock()),
    )
    if tx.execute(valid_keys).scalar_one() >= MAX_KEYS:
        legal = f"at most {MAX_KEYS} valid keys; revoke one first, or rotate without grace"
        raise InvalidRequest("keys", "no more keys can be issued", legal=legal)


def _look_up(tx: Connection, key: str) -> Caller | None:
    params = {"key_id": key_id_of(key), "key_hash": _hash(key)}
    row = tx.execute(statement("holder_of_key"), params).one_or_none()
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
