"""Bodies of requests about keys: what may be asked for, and nothing else."""

from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from app.control.keys import GRACE, LONGEST_GRACE
from app.domain.scopes import EVERYTHING
from overnight.jsonvalue import sound_text

YEARS_SECONDS = 10 * 365 * 86_400
Name = Annotated[str, Field(min_length=1, max_length=100), AfterValidator(sound_text)]
Scopes = Annotated[list[str], Field(min_length=1, max_length=20)]


class Wanted(BaseModel):
    """Common ground: a field that is not known is refused, never ignored."""

    model_config = ConfigDict(extra="forbid")


class NewKey(Wanted):
    """A key to be made."""

    name: Name
    scopes: Scopes = [EVERYTHING]
    expires_in_seconds: int | None = Field(default=None, ge=60, le=YEARS_SECONDS)

    @property
    def expires_in(self) -> timedelta | None:
        """How long it is good for."""
        seconds = self.expires_in_seconds
        return None if seconds is None else timedelta(seconds=seconds)


class Rotation(Wanted):
    """How a key is handed over to the next."""

    grace_seconds: int = Field(
        default=int(GRACE.total_seconds()), ge=0, le=int(LONGEST_GRACE.total_seconds())
    )

    @property
    def grace(self) -> timedelta:
        """How long the old key stays good."""
        return timedelta(seconds=self.grace_seconds)


#: A rotation that asks for nothing in particular.
USUAL = Rotation()
