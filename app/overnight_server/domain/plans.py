"""Plans: how many tasks at once, how long each, how many hours a month."""

from dataclasses import dataclass
from enum import StrEnum

from overnight.models.enums import PlanTier


class OnExhausted(StrEnum):
    """What happens to a submit when the hours of the month are used up."""

    REJECT = "reject"
    HOLD = "hold"


@dataclass(frozen=True)
class PlanLimits:
    """The limits of a plan; `monthly_agent_hours` None means no limit."""

    max_concurrent_agents: int
    max_task_duration_minutes: int
    monthly_agent_hours: int | None


@dataclass(frozen=True)
class CommandLimits:
    """The most that a command of a plan's task may use; `network`: whether it may have one."""

    memory_mb: int
    processes: int
    workspace_mb: int
    network: bool


# Checked when a task is created; an agent profile, which an operator wrote, may exceed them.
COMMAND_LIMITS: dict[PlanTier, CommandLimits] = {
    PlanTier.FREE: CommandLimits(2048, 256, 1024, network=False),
    PlanTier.PRO: CommandLimits(4096, 512, 4096, network=True),
    PlanTier.TEAM: CommandLimits(8192, 1024, 8192, network=True),
    PlanTier.ENTERPRISE: CommandLimits(16384, 4096, 16384, network=True),
}


@dataclass(frozen=True)
class ArtifactLimits:
    """The largest sizes of artifacts in MB: of one, of one task's, and of all that are stored.

    `stored_mb` None means no limit; a user may have another one.
    """

    one_mb: int
    task_mb: int
    stored_mb: int | None


# Checked when an artifact is stored, besides the limits of the settings.
ARTIFACT_LIMITS: dict[PlanTier, ArtifactLimits] = {
    PlanTier.FREE: ArtifactLimits(8, 100, 1_000),
    PlanTier.PRO: ArtifactLimits(64, 1_000, 20_000),
    PlanTier.TEAM: ArtifactLimits(256, 4_000, 200_000),
    PlanTier.ENTERPRISE: ArtifactLimits(1_000, 10_000, None),
}
BYTES_PER_MB = 1_000_000


def storage_limit_mb(plan: PlanTier, own_mb: int | None) -> int | None:
    """Return how many MB of artifacts a user may store: the user's own limit, or the plan's.

    >>> storage_limit_mb(PlanTier.FREE, None), storage_limit_mb(PlanTier.FREE, 5_000)
    (1000, 5000)
    """
    return ARTIFACT_LIMITS[plan].stored_mb if own_mb is None else own_mb


# Templates: copied to the user's columns at sign-up and plan change; only the columns apply.
PLAN_LIMITS: dict[PlanTier, PlanLimits] = {
    PlanTier.FREE: PlanLimits(1, 30, 10),
    PlanTier.PRO: PlanLimits(3, 120, 100),
    PlanTier.TEAM: PlanLimits(10, 240, None),
    PlanTier.ENTERPRISE: PlanLimits(50, 480, None),
}
