"""Bodies of requests about keys: what may be asked for, and nothing else."""

from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field

from overnight.models.base import RequestModel
from overnight.models.field_types import WholeNumber
from overnight.models.json_values import check_text
from overnight_server.control.keys import GRACE, LONGEST_GRACE
from overnight_server.domain.scopes import EVERYTHING, SCOPES

YEARS_SECONDS = 10 * 365 * 86_400
Name = Annotated[str, Field(min_length=1, max_length=100), AfterValidator(check_text)]
# RequestModel here and judged by `scopes`, where a refusal names those there are.
Scope = Annotated[str, Field(json_schema_extra={"enum": list(SCOPES)})]
Scopes = Annotated[list[Scope], Field(min_length=1, max_length=20)]


class Wanted(RequestModel):
    """Common ground: a field that is not known is refused, never ignored."""

    model_config = ConfigDict(extra="forbid")


class NewKey(Wanted):
    """A key to be made."""

    name: Name = Field(description="What you call it.")
    scopes: Scopes = Field(
        default=[EVERYTHING], description="What it may be used for; no more than the key shown."
    )
    expires_in_seconds: WholeNumber | None = Field(
        default=None, ge=60, le=YEARS_SECONDS, description="How long it is good; null is for ever."
    )

    @property
    def expires_in(self) -> timedelta | None:
        """How long it is good for."""
        seconds = self.expires_in_seconds
        return None if seconds is None else timedelta(seconds=seconds)


class Rotation(Wanted):
    """How a key is handed over to the next."""

    grace_seconds: WholeNumber = Field(
        default=int(GRACE.total_seconds()),
        ge=0,
        le=int(LONGEST_GRACE.total_seconds()),
        description="How long the old key stays good.",
    )

    @property
    def grace(self) -> timedelta:
        """How long the old key stays good."""
        return timedelta(seconds=self.grace_seconds)


#: A rotation that asks for nothing in particular.
USUAL = Rotation()
