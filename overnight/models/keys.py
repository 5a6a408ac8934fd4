"""API keys as their owners and admins see them."""

from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field


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
