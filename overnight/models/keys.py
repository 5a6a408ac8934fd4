"""API keys as their owners and admins see them."""

from datetime import datetime, timedelta
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from overnight.models.base import RequestModel
from overnight.models.field_types import DAY_SECONDS, ShortText, WholeNumber
from overnight.models.scopes import EVERYTHING, SCOPES

TEN_YEARS_SECONDS = 10 * 365 * DAY_SECONDS
MAX_GRACE_SECONDS = 30 * DAY_SECONDS
# The enum only documents the scopes; the service checks them, and its error lists all.
Scope = Annotated[str, Field(json_schema_extra={"enum": list(SCOPES)})]
Scopes = Annotated[list[Scope], Field(min_length=1, max_length=20)]


class KeyCreate(RequestModel):
    """An API key to create."""

    name: ShortText = Field(description="A name for the key.")
    scopes: Scopes = Field(
        default=[EVERYTHING],
        description="What requests with the key may do; not more than with the key of the request.",
    )
    expires_in_seconds: WholeNumber | None = Field(
        default=None,
        ge=60,
        le=TEN_YEARS_SECONDS,
        description="After how many seconds the key expires, but not later than the key or token of"
        " the request; null means as late as possible.",
    )

    @property
    def expires_in(self) -> timedelta | None:
        """After which time the key expires."""
        seconds = self.expires_in_seconds
        return None if seconds is None else timedelta(seconds=seconds)


class KeyRotation(RequestModel):
    """How an API key is replaced by a new one."""

    grace_seconds: WholeNumber = Field(
        default=DAY_SECONDS,
        ge=0,
        le=MAX_GRACE_SECONDS,
        description="For how many seconds the old key stays valid.",
    )

    @property
    def grace(self) -> timedelta:
        """For how long the old key stays valid."""
        return timedelta(seconds=self.grace_seconds)


class SignInLink(BaseModel):
    """A link that signs a browser in to the dashboard, once."""

    path: str = Field(description="The path of the link, below the address of the service.")
    expires_at: datetime = Field(description="Until when the link can be opened.")


class ApiKey(BaseModel):
    """One API key without its secret."""

    model_config = ConfigDict(extra="ignore", frozen=True, from_attributes=True)

    id: str = Field(description="The key's id, which is the part of the key that is not secret.")
    name: str = Field(description="The name that its owner gave it.")
    last4: str = Field(description="The last four characters of the secret.")
    scopes: list[str] = Field(description="What requests with this key may do.")
    created_at: datetime = Field(description="When the key was created.")
    expires_at: datetime | None = Field(None, description="When it expires; null means never.")
    revoked_at: datetime | None = Field(None, description="When it was revoked, if it was.")
    last_used_at: datetime | None = Field(None, description="When a request last used it.")
    replaced_by: str | None = Field(None, description="The id of the key that replaced it.")
    made_by: str | None = Field(
        None,
        description="What it was made with: key: and an id, token: and a subject, or no-auth; null"
        " for a key that an operator made in the database.",
    )


class UserApiKey(ApiKey):
    """One API key with the name of its owner, for admins."""

    user: str = Field(description="The name of the user it belongs to.")


class CreatedApiKey(BaseModel):
    """A new API key; the service stores only its hash, so it is shown this once."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: str = Field(description="The key's id.")
    key: str = Field(description="The key itself.")


class RevokedApiKey(BaseModel):
    """An API key that no longer authenticates any request."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: str = Field(description="The key's id.")
    revoked: bool = Field(default=True, description="Always true.")
