"""How a task's runs are executed: the runner, its limits and network, and agent profiles."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator

from overnight.models.base import RequestModel, ResponseModel
from overnight.models.field_types import Number, ShortText, Text, WholeNumber
from overnight.models.json_values import check_text

Runner = Literal["python", "command", "http"]
# A name with at least one dot, and maybe a port from 1 to 65535.
HostName = Annotated[
    str,
    Field(
        pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)+"
        r"(:([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]))?$",
        max_length=259,
    ),
]
ProfileName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,63}$")]


def _not_our_own(name: str) -> str:
    if name.startswith("OVERNIGHT_"):
        raise ValueError("variables that begin with OVERNIGHT_ are the service's own")
    return name


VariableName = Annotated[
    str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$"), AfterValidator(_not_our_own)
]
VariableValue = Annotated[str, Field(max_length=10_000), AfterValidator(check_text)]
Argument = Annotated[str, Field(max_length=10_000), AfterValidator(check_text)]
Argv = Annotated[tuple[Argument, ...], Field(min_length=1, max_length=200)]
# An absolute path of the worker's machine, or a URL.
RepositoryText = Annotated[
    str,
    Field(pattern=r"^(/[^\x00-\x1f\x7f]*|https://[^/@\s]+/[^\x00-\x20\x7f]*)$", max_length=1000),
]
# What git accepts as a name of a branch, a tag or a commit; it never looks like an option.
RefText = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_./+@-]*$", max_length=200)]
# Absolute, without empty parts.
HostPath = Annotated[str, Field(pattern=r"^(/[^/\x00]+)+$", max_length=4096)]
Environment = Annotated[dict[VariableName, VariableValue], Field(max_length=100)]


class RunLimits(RequestModel):
    """What the programs of one run may use; a limit that is left out has its default."""

    memory_mb: WholeNumber | None = Field(
        None, ge=64, le=1_048_576, description="The memory of all its processes together."
    )
    processes: WholeNumber | None = Field(
        None, ge=1, le=32_768, description="How many processes and threads it may have at once."
    )
    workspace_mb: WholeNumber | None = Field(
        None, ge=1, le=1_048_576, description="The size of its workspace."
    )
    grace_seconds: Number | None = Field(
        None,
        ge=0,
        le=300,
        description="How long it may take to end after SIGTERM; the default is 10.",
    )


class NetworkAllow(RequestModel):
    """The hosts that a run may reach, by exact name; all others are refused."""

    allow: tuple[HostName, ...] = Field(
        min_length=1,
        max_length=50,
        description="Names of hosts: api.example.com allows its ports 80 and 443,"
        " git.example.com:2222 that port alone.",
    )


Network = Literal["off"] | NetworkAllow


class CommandOptions(RequestModel):
    """What the spec of a task says about its command."""

    argv: Argv | None = Field(None, description="The program and its arguments, without a shell.")
    env: Environment = Field(default_factory=dict, description="Environment variables.")


# What a sandbox has of its own.
RESERVED_PLACES = ("dev", "etc", "overnight", "proc", "tmp", "workspace")


class Mount(RequestModel):
    """A file or directory of the worker's machine that an agent sees, and cannot change."""

    source: HostPath = Field(description="Its path on the worker's machine.")
    target: HostPath = Field(description="Where the agent finds it.")

    @field_validator("target")
    @classmethod
    def _place_is_free(cls, target: str) -> str:
        parts = target.split("/")[1:]
        if parts[0] in RESERVED_PLACES or ".." in parts:
            places = ", ".join(f"/{place}" for place in RESERVED_PLACES)
            raise ValueError(f"must be a path outside of {places}, such as /opt/agent")
        return target


class AgentProfile(RequestModel):
    """How an agent is run: its command, what it gets, and what it may use."""

    runner: Literal["command"] = Field("command", description="The runner.")
    argv: Argv = Field(
        description="The program and its arguments, without a shell. {workspace}, {model} and"
        " {task_id} are replaced; the prompt is on stdin."
    )
    env: Environment = Field(
        default_factory=dict,
        description="Environment variables; the value secret:NAME is the secret SECRET_NAME of the"
        " worker.",
    )
    network: Network = Field(
        "off", description='off, or the hosts that the agent may reach: {"allow": [host, …]}.'
    )
    mounts: tuple[Mount, ...] = Field(
        (),
        max_length=20,
        description="What the agent sees of the worker's machine besides /usr, read-only.",
    )
    limits: RunLimits = Field(default_factory=RunLimits, description="What a run may use.")
    models: tuple[ShortText, ...] = Field(
        (),
        max_length=20,
        description="The models that a task may choose, the default first; empty: any.",
    )
    push: bool = Field(
        default=False,
        strict=True,
        description="Whether the worker brings the branch of a successful run into the repository,"
        " if that is a path.",
    )
    description: Text = Field("", max_length=1000, description="What the agent is, for people.")

    @field_validator("argv")
    @classmethod
    def _program_is_named(cls, argv: tuple[str, ...]) -> tuple[str, ...]:
        if not argv[0]:
            raise ValueError("its first entry, the program, is empty")
        return argv


class NamedAgentProfile(ResponseModel):
    """An agent profile with its name."""

    name: str = Field(description="The name, which a task gives as its agent.")
    profile: dict[str, Any] = Field(description="The profile.")
    updated_at: datetime = Field(description="When it was last changed.")


class AgentProfileRemoved(ResponseModel):
    """The name of a removed agent profile."""

    name: str = Field(description="The name.")
