"""Uuids on the way to Postgres and back, in less time than the driver takes for them.

Most of what a batch of claims carries are uuids, and the driver's own way over `uuid.UUID` took as
long as Postgres took to choose the tasks.
"""

from collections.abc import Iterable
from uuid import UUID, SafeUUID

from psycopg2.extensions import connection, cursor, new_array_type, new_type, register_type

_UUID_OID = 2950
_UUID_ARRAY_OID = 2951


def as_array(uuids: Iterable[UUID]) -> str:
    """Write uuids as one value, to be cast to `uuid[]`.

    >>> as_array([UUID(int=1), UUID(int=255)])
    '{00000000000000000000000000000001,000000000000000000000000000000ff}'
    """
    return "{" + ",".join([f"{one.int:032x}" for one in uuids]) + "}"


def read(text: str | bytes | None, _: cursor | None = None) -> UUID | None:
    """Read a uuid as Postgres writes it, which needs no checking.

    >>> read("00000000-0000-0000-0000-0000000000ff")
    UUID('00000000-0000-0000-0000-0000000000ff')
    """
    if not isinstance(text, str):
        return None
    uuid = object.__new__(UUID)
    object.__setattr__(uuid, "int", int(text.replace("-", ""), 16))
    object.__setattr__(uuid, "is_safe", SafeUUID.unknown)
    return uuid


_ONE = new_type((_UUID_OID,), "UUID", read)
_MANY = new_array_type((_UUID_ARRAY_OID,), "UUID[]", _ONE)


def teach(link: connection) -> None:
    """Have a connection read uuids so."""
    register_type(_ONE, link)
    register_type(_MANY, link)
