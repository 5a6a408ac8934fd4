"""Faster conversion of UUIDs between Python and Postgres than psycopg2's own.

Most values of a batch of claims are UUIDs. psycopg2's conversion of `uuid.UUID` took as long as
Postgres took to choose the tasks.
"""

from collections.abc import Iterable
from uuid import UUID, SafeUUID

from psycopg2.extensions import connection, cursor, new_array_type, new_type, register_type

_UUID_OID = 2950
_UUID_ARRAY_OID = 2951


def as_array(uuids: Iterable[UUID]) -> str:
    """Write UUIDs as one string that SQL casts to `uuid[]`.

    >>> as_array([UUID(int=1), UUID(int=255)])
    '{00000000000000000000000000000001,000000000000000000000000000000ff}'
    """
    return "{" + ",".join([f"{uuid.int:032x}" for uuid in uuids]) + "}"


def parse_uuid(text: str | bytes | None, _: cursor | None = None) -> UUID | None:
    """Parse a UUID that Postgres wrote; its form is not checked.

    >>> parse_uuid("00000000-0000-0000-0000-0000000000ff")
    UUID('00000000-0000-0000-0000-0000000000ff')
    """
    if not isinstance(text, str):
        return None
    uuid = object.__new__(UUID)
    object.__setattr__(uuid, "int", int(text.replace("-", ""), 16))
    object.__setattr__(uuid, "is_safe", SafeUUID.unknown)
    return uuid


_UUID_TYPE = new_type((_UUID_OID,), "UUID", parse_uuid)
_UUID_ARRAY_TYPE = new_array_type((_UUID_ARRAY_OID,), "UUID[]", _UUID_TYPE)


def register_uuid_types(connection: connection) -> None:
    """Let a connection parse UUIDs with `parse_uuid`."""
    register_type(_UUID_TYPE, connection)
    register_type(_UUID_ARRAY_TYPE, connection)
