"""What a sandbox runs, what it may use, and how it ended."""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Final, Literal

MEGABYTE: Final = 1 << 20
# Where a command finds its workspace.
WORKSPACE: Final = "/workspace"
# What a sandbox has itself, so that nothing of the host can be mounted there.
OWN_PLACES: Final = ("dev", "etc", "proc", "tmp", "workspace")
# The descriptor on which a command writes events, and the variable that names it.
EVENTS_FD: Final = 3
EVENTS_VARIABLE: Final = "OVERNIGHT_EVENTS_FD"
# Used unless the specification's environment says otherwise.
DEFAULT_ENV: Final = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/tmp",  # noqa: S108 - the sandbox's own
    "TMPDIR": "/tmp",  # noqa: S108 - the same
    "LANG": "C.UTF-8",
}


class SandboxKind(StrEnum):
    """A way to run a command: in a sandbox by bubblewrap or by our own program, or without one.

    With NONE the command sees the host's files and network: its limits, except those of the whole
    sandbox, and its own user are all that remains.
    """

    BUBBLEWRAP = "bwrap"
    OWN = "own"
    NONE = "none"


# The preferred one first.
SANDBOXES: Final = (SandboxKind.BUBBLEWRAP, SandboxKind.OWN)


@dataclass(frozen=True)
class SandboxLimits:
    """What the processes of one sandbox may use; sizes are in megabytes of 2^20 bytes."""

    memory_mb: int = 2048
    processes: int = 256
    workspace_mb: int = 1024
    open_files: int = 1024
    file_mb: int = 1024
    tmp_mb: int = 256
    cpu_seconds: int | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for a limit below 1."""
        for name, value in vars(self).items():
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}: a limit of a sandbox is at least 1")


@dataclass(frozen=True)
class NetworkPolicy:
    """Which hosts a sandbox may reach, by exact name; none by default."""

    allow: tuple[str, ...] = ()

    @property
    def is_off(self) -> bool:
        """Whether the sandbox reaches no host."""
        return not self.allow


@dataclass(frozen=True)
class ReadOnlyMount:
    """A file or directory of the host that a sandbox sees at `target`, and cannot change."""

    source: Path
    target: str

    def __post_init__(self) -> None:
        """Raise ValueError for a target that is not a place of its own."""
        parts = PurePosixPath(self.target).parts
        if parts[:1] != ("/",) or ".." in parts or len(parts) == 1 or parts[1] in OWN_PLACES:
            places = ", ".join(f"/{place}" for place in OWN_PLACES)
            raise ValueError(
                f"{self.target!r} cannot be mounted: a target is an absolute path outside {places}"
            )


@dataclass(frozen=True)
class SandboxSpec:
    """One command and everything that it gets.

    `workspace` is a directory on the host; the command finds it as its working directory
    `/workspace`. `env` is added to a small default environment. `stdin` is what the command can
    read there. Nothing of the worker's own environment or descriptors reaches the command.
    """

    argv: tuple[str, ...]
    workspace: Path
    env: dict[str, str] = field(default_factory=dict)
    limits: SandboxLimits = SandboxLimits()
    network: NetworkPolicy = NetworkPolicy()
    stdin: bytes = b""
    read_only_mounts: tuple[ReadOnlyMount, ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError without a command."""
        if not self.argv:
            raise ValueError("argv is empty: it needs at least the name of a program")


EndCause = Literal["exit", "signal", "stopped", "oom", "workspace_full", "failed"]


@dataclass(frozen=True)
class SandboxEnd:
    """How a sandbox ended.

    `cause` is `exit` or `signal` if the command ended by itself, `stopped` if `terminate` or `kill`
    was called before, `oom` or `workspace_full` if a limit ended it, `failed` if the sandbox itself
    failed. `exit_code` or `signal` says how the command ended, if it is known. `peak_memory` is in
    bytes, None if it was not measured. `detail` is a sentence for the last three causes.
    """

    cause: EndCause
    exit_code: int | None = None
    signal: int | None = None
    peak_memory: int | None = None
    detail: str = ""


class NoSandbox(Exception):
    """A sandbox cannot be made here; `remedy` says what an operator can do."""

    error_class: Final = "no_sandbox"

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.remedy = remedy
