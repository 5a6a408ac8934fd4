"""Common ground of all tables: types, and the closed sets of words in their constraints."""

from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import Numeric, text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, TIMESTAMP
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.types import Text, UserDefinedType

from overnight_server.domain.lifecycle import ACTIVE, WAITING

Instant = TIMESTAMP(timezone=True)
# One amount is bounded where it comes in; sums of many have room.
USD = Numeric(18, 6)
EMPTY_ARRAY = text("'{}'")
EMPTY_OBJECT = text("'{}'")


def words(values: Iterable[str]) -> str:
    """Write a closed set of words as SQL literals, sorted."""
    return ", ".join(f"'{value}'" for value in sorted(values))


IS_ACTIVE = f"state IN ({words(state.value for state in ACTIVE)})"
IS_WAITING = f"state IN ({words(state.value for state in WAITING)})"


class Spans(UserDefinedType[Any]):
    """A span of names, or several, as the spine defines them."""

    cache_ok = True

    def __init__(self, name: str) -> None:
        self.name = name

    def get_col_spec(self, **_: object) -> str:
        """Return the type's name in SQL."""
        return self.name


class Base(DeclarativeBase):
    """Common ground of all tables."""

    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy's own protocol
        datetime: Instant,
        str: Text,
        dict[str, Any]: JSONB,
        list[str]: ARRAY(Text),
        Decimal: Numeric(14, 3),
    }
