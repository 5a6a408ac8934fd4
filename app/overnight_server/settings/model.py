"""Every setting of the deployment: its name, default, range and purpose."""

from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from overnight_server.settings.checks import (
    long_secret,
    place_of_keys,
    points_of_fault,
    psycopg2_address,
    redis_address,
    signatures,
    stays_at_home,
    web_address,
    whole_rules,
)
from overnight_server.settings.field_types import (
    Also,
    Legal,
    Names,
    Seconds,
    Secret,
    Span,
    Word,
    clock,
    env_of,
    legal_words,
    mark_of,
    shown,
)

HEARTBEATS_PER_LEASE = 3
PORT = Span(0, 65535)


class SettingRow(NamedTuple):
    """One setting as it is shown: without secrets, and with where its value came from."""

    name: str
    env: str
    value_masked: str
    origin: str
    default: str
    legal: str
    description: str


WebAddress = Annotated[
    str | None, AfterValidator(web_address), Legal("an http:// or https:// address")
]


class Settings(BaseModel):
    """What the deployment can be told; frozen, and filled by `load` alone.

    Durations are seconds, given as a number or with units (`90`, `90s`, `1m30s`).
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=True
    )

    # First, because the ranges of all clocks below depend on it.
    allow_short_clocks: bool = Field(
        default=False,
        description="Lift the least value of every duration. For tests and drills only: short "
        "clocks turn a slow moment into a lost lease.",
    )
    fault: Annotated[
        str | None,
        AfterValidator(points_of_fault),
        Legal("`point=mode,…`; a mode is kill, raise, drop or delay:SECONDS"),
    ] = Field(
        default=None,
        description="Points at which processes fail on purpose. For tests and drills only.",
    )
    home: Annotated[Path, Also("AG_QUEUE_DIR")] = Field(
        default=Path(".overnight"),
        description="Directory of everything `overnight up` keeps: server data, keys, run files.",
    )
    config_file: Path | None = Field(
        default=None,
        description="JSON file with settings by name, nested or flat; the environment outranks it.",
    )
    log_format: Annotated[Literal["logfmt", "json"], Word] = Field(
        default="logfmt", description="Form of the log lines on stderr."
    )
    log_level: Annotated[Literal["debug", "info", "warn", "error"], Word] = Field(
        default="info", description="Least level of the log lines that are written."
    )

    database_url: Annotated[
        str | None,
        AfterValidator(psycopg2_address),
        Secret(),
        Legal("a postgresql:// or postgres:// address"),
    ] = Field(
        default=None,
        description="Postgres that holds the tasks. Not set: `overnight up` starts its own.",
    )
    database_pool_size: Annotated[int, Span(1, 100)] = Field(
        default=5, description="Connections a process may keep open to Postgres."
    )
    redis_url: Annotated[
        str | None,
        AfterValidator(redis_address),
        Secret(),
        Legal("a redis:// or rediss:// address"),
    ] = Field(
        default=None,
        description="Redis that carries the wake-up calls. Not set: `overnight up` starts its own.",
    )
    redis_key_prefix: str = Field(
        default="overnight:",
        description="Prefix of every key in Redis, so that several deployments can share a server.",
    )
    pg_bin: Path | None = Field(
        default=None,
        description="Directory with `postgres` and `initdb` for the embedded server.",
    )
    redis_bin: Path | None = Field(
        default=None,
        description="Program `redis-server` or `valkey-server` for the embedded server.",
    )

    api_host: str = Field(default="127.0.0.1", description="Address the API listens on.")
    api_port: Annotated[int, PORT] = Field(
        default=0, description="Port the API listens on; 0 takes a free one."
    )
    flower_host: str = Field(default="127.0.0.1", description="Address Flower listens on.")
    flower_port: Annotated[int, PORT] = Field(
        default=0, description="Port Flower listens on; 0 takes a free one."
    )
    flower_user: str = Field(default="overnight", description="Name to sign in to Flower with.")
    flower_password: Annotated[str | None, Secret()] = Field(
        default=None,
        description="Password to sign in to Flower with. Not set: `overnight up` makes one.",
    )
    url: Annotated[WebAddress, Also("OVERNIGHT_DIRECTOR_URL")] = Field(
        default=None,
        description="API the client and the user commands speak to. Not set: the one `overnight "
        "up` started under this home.",
    )
    profile: str | None = Field(
        default=None, description="Profile to use where no address is set; else the default one."
    )
    api_key: Annotated[str | None, Secret()] = Field(
        default=None, description="Key the client and the user commands present to the API."
    )
    task_id: str | None = Field(default=None, description="Task in whose run `overnight mcp` acts.")
    claim_token: Annotated[str | None, Secret()] = Field(
        default=None, description="Token of that run's claim; both come from `ctx.environ`."
    )

    no_auth: str | None = Field(
        default=None,
        description="Name of a user for whom every request without a key is served. Only where "
        "the API listens on this machine alone; for trying things out.",
    )
    jwt_algorithms: Annotated[
        Names,
        AfterValidator(signatures),
        Legal("HS256 alone, or any of RS256, ES256, EdDSA, separated by commas"),
    ] = Field(
        default=(),
        description="Signatures of the bearer tokens (JWT) that the API takes besides keys. Not "
        "set: none.",
    )
    jwt_secret: Annotated[
        str | None, AfterValidator(long_secret), Secret(), Legal("32 bytes or more")
    ] = Field(default=None, description="Secret that tokens are signed with under HS256.")
    jwt_keys: Annotated[
        str | None,
        AfterValidator(place_of_keys),
        Legal("a file, or an https:// address (http:// on this machine only)"),
    ] = Field(
        default=None,
        description="Public keys that tokens are signed with: a PEM file, or a JWKS as a file or "
        "at an address.",
    )
    jwt_issuer: str | None = Field(
        default=None, description="Who must have made a token out (`iss`)."
    )
    jwt_audience: str | None = Field(
        default=None, description="For whom a token must be made out (`aud`)."
    )
    jwt_leeway: Annotated[Seconds, Span(0, 30)] = Field(
        default=10, description="Seconds by which the clock of a token's maker may differ."
    )
    rate_limit_per_second: Annotated[float, Span(0, 100_000)] = Field(
        default=500,
        description="Requests that one key may make per second in the long run; 0 for no limit.",
    )
    rate_limit_burst: Annotated[int, Span(1, 1_000_000)] = Field(
        default=2000, description="Requests that one key may make at once after a rest."
    )

    handlers: Names = Field(
        default=(), description="Modules whose `@handler` functions a worker loads, dotted names."
    )
    default_type: str = Field(default="echo", description="Type of a task that names none.")
    pool: str = Field(default="default", description="Pool a worker serves.")
    concurrency: Annotated[int, Span(1, 256)] = Field(
        default=2, description="Tasks a worker runs at once."
    )
    capabilities: Names = Field(
        default=(), description="What a worker's pool can do; tasks may require it."
    )
    agent_budget_usd: Annotated[float | None, Span(0, 999_999)] = Field(
        default=None,
        description="What one worker's runs may cost from its start to its end. Not set: no limit.",
    )
    worker_liveness: Annotated[Seconds, clock(5, 300)] = Field(
        default=15, description="Silence after which a worker's slots no longer count."
    )
    bundle_max: Annotated[int, Span(1, 500)] = Field(
        default=100, description="Quick tasks that may share a message; 1 sends each alone."
    )
    bundle_seconds: Annotated[float, Span(0.01, 10)] = Field(
        default=0.25, description="Seconds of quick work that may share a message."
    )
    refill_seconds: Annotated[float, Span(0, 600)] = Field(
        default=10,
        description="How long a slot goes on by itself with quick tasks before it takes messages "
        "again; 0 sends every task by message, and no slot lingers for more.",
    )
    max_tasks_per_child: Annotated[int, Span(1, 100_000)] = Field(
        default=1000,
        description="Messages a worker's child process takes before it is replaced; replacing one "
        "keeps its slot empty for about a second.",
    )

    poll_interval: Annotated[Seconds, clock(1, 30)] = Field(
        default=5, description="How often the dispatcher looks for work when no wake-up comes."
    )
    dispatch_timeout: Annotated[Seconds, clock(1, 300), Also("AG_QUEUE_DISPATCH_TIMEOUT")] = Field(
        default=30, description="How long an agent may take to accept a task."
    )
    dispatch_tick_interval: Annotated[Seconds, clock(5, 300)] = Field(
        default=30, description="How often beat dispatches too, in case no dispatcher runs."
    )
    claim_ttl: Annotated[Seconds, clock(30, 300), Also("OVERNIGHT_STALE_CLAIMING_THRESHOLD")] = (
        Field(default=60, description="How long a claimed task may wait for its start.")
    )
    heartbeat_interval: Annotated[Seconds, clock(1, 60)] = Field(
        default=10, description="How often a run renews its lease; three times per lease or more."
    )
    lease_seconds: Annotated[Seconds, clock(5, 600)] = Field(
        default=30, description="Silence after which a run counts as lost."
    )
    lease_check_interval: Annotated[Seconds, clock(1, 60)] = Field(
        default=5, description="How often beat looks for lost runs and claims that never started."
    )
    timeout_check_interval: Annotated[Seconds, clock(30, 300)] = Field(
        default=60, description="How often beat looks for runs that overran their time."
    )
    promote_interval: Annotated[Seconds, clock(1, 60)] = Field(
        default=5, description="How often beat makes tasks ready whose retry is due."
    )
    trigger_interval: Annotated[Seconds, clock(1, 60)] = Field(
        default=5, description="How often beat lets in graphs that the end of another sets off."
    )
    inbox_interval: Annotated[Seconds, clock(1, 60)] = Field(
        default=1.0, description="How often the inbox is looked through."
    )
    bulk_interval: Annotated[Seconds, clock(1, 60)] = Field(
        default=2, description="How often beat has bulk operations gone on with."
    )
    cycle_check_interval: Annotated[Seconds, clock(1, 3600)] = Field(
        default=60,
        description="How often beat looks for billing cycles that ended and night windows that "
        "turn; the gate itself looks at every pass.",
    )
    deadline_check_interval: Annotated[Seconds, clock(1, 3600)] = Field(
        default=15, description="How often beat ends tasks that did not start by their deadline."
    )
    urgency_interval: Annotated[Seconds, clock(5, 3600)] = Field(
        default=60, description="How often beat moves tasks forward whose deadline nears."
    )
    audit_interval: Annotated[Seconds, clock(10, 86_400)] = Field(
        default=300, description="How often the lanes' counts are compared with the task rows."
    )
    leader_lease: Annotated[Seconds, clock(5, 300)] = Field(
        default=15, description="How long beat or a dispatcher holds its duty without renewal."
    )
    cancel_grace: Annotated[Seconds, clock(1, 600)] = Field(
        default=30, description="How long a run may take to stop before it is ended by force."
    )
    shutdown_grace: Annotated[Seconds, clock(1, 600)] = Field(
        default=5, description="How long runs may take to finish when their worker shuts down."
    )
    completion_poll_interval: Annotated[Seconds, clock(1, 60)] = Field(
        default=5, description="How often an outside agent that sent no result is asked for it."
    )

    agent_poll_interval_sec: Annotated[Seconds, clock(1, 300)] = Field(
        default=5, description="How often a pull agent asks for work, unless it says otherwise."
    )
    agent_claim_ttl_sec: Annotated[Seconds, clock(30, 300)] = Field(
        default=60, description="How long a pull agent may take to start what it claimed."
    )
    agent_heartbeat_interval_sec: Annotated[Seconds, clock(1, 300)] = Field(
        default=30, description="How often a pull agent renews its lease."
    )
    agent_stale_after_sec: Annotated[Seconds, clock(5, 3600)] = Field(
        default=90, description="Silence after which a pull agent's run counts as lost."
    )
    agent_max_concurrent_tasks: Annotated[int, Span(1, 1000)] = Field(
        default=2, description="Tasks a pull agent holds at once, unless it says otherwise."
    )

    max_pending_per_user: Annotated[int, Span(10, 200)] = Field(
        default=50, description="Tasks a user may have waiting, unless the user has an own limit."
    )
    max_streams_per_user: Annotated[int, Span(1, 10_000)] = Field(
        default=20, description="Event streams and waits a user may hold open at one API process."
    )
    queue_max_size: Annotated[int, Span(1, 100_000_000), Also("AG_QUEUE_MAX_SIZE")] = Field(
        default=1_000_000,
        description="Tasks the whole system may have waiting; 50 is the single-director mode.",
    )
    max_tasks_per_dag: Annotated[int, Span(1, 100_000)] = Field(
        default=1000, description="Tasks one graph may have."
    )
    max_spawn_depth: Annotated[int, Span(0, 100)] = Field(
        default=5,
        description="Generations of tasks below a submitted one; 0 lets no task spawn others.",
    )
    max_children_per_task: Annotated[int, Span(1, 100_000)] = Field(
        default=100, description="Tasks that one task may spawn."
    )
    max_artifact_bytes: Annotated[int, Span(1, 100_000_000)] = Field(
        default=8_000_000, description="How large one artifact may be."
    )
    max_artifacts_per_task: Annotated[int, Span(1, 10_000)] = Field(
        default=100, description="Artifacts that one task may make."
    )
    slots_max: Annotated[int | None, Span(1, 100_000)] = Field(
        default=None, description="Tasks that may run at once in the whole system. Not set: no cap."
    )
    eligible_users_per_claim: Annotated[int, Span(1, 10_000)] = Field(
        default=10, description="Users considered in one pass of the gate."
    )
    per_user_serialization_enabled: bool = Field(
        default=True, description="Keep tasks that share a lock from running at once."
    )
    per_user_serialization_scope: Annotated[Literal["project", "user", "none"], Word] = Field(
        default="project",
        description="What shares a lock: a user's tasks of one project, all of a user's, or none.",
    )
    per_user_serialization_lock_timeout_seconds: Annotated[Seconds, clock(60, 86_400)] = Field(
        default=3600, description="How long a lock may go without renewal."
    )

    priority: Annotated[int, Span(0, 100)] = Field(
        default=50, description="Stored priority of a task that names none; 0 is most urgent."
    )
    priority_boost_per_minute: Annotated[float, Span(0, 10)] = Field(
        default=0.1, description="How much more urgent a waiting task becomes each minute."
    )
    max_attempts: Annotated[int, Span(1, 100), Also("AG_QUEUE_MAX_ATTEMPTS")] = Field(
        default=3, description="Runs that may fail before a task is dead-lettered."
    )
    retry_strategy: Annotated[Literal["exponential", "quadratic", "fixed", "immediate"], Word] = (
        Field(default="exponential", description="How the wait grows from retry to retry.")
    )
    retry_initial_delay_sec: Annotated[Seconds, clock(1, 86_400)] = Field(
        default=10, description="Wait before the first retry."
    )
    retry_backoff_multiplier: Annotated[float, Span(1, 100)] = Field(
        default=2.0, description="Growth of the wait under `exponential`."
    )
    retry_quadratic_base_sec: Annotated[Seconds, clock(1, 86_400)] = Field(
        default=5, description="Wait under `quadratic`, times the square of the attempts made."
    )
    retry_max_delay_sec: Annotated[Seconds, clock(1, 604_800)] = Field(
        default=300, description="Longest wait before a retry, jitter included."
    )
    retry_jitter: bool = Field(
        default=True, description="Vary each wait by a factor of 0.5 to 1.5."
    )
    retry_on: Names = Field(
        default=("timeout", "crash", "rate_limit", "invalid_output", "error"),
        description="Failure reasons that are retried.",
    )
    no_retry_on: Names = Field(
        default=("auth_failure", "budget_exceeded", "cancelled"),
        description="Failure reasons that are never retried.",
    )
    poison_distinct_agents: Annotated[int, Span(1, 100)] = Field(
        default=2, description="Workers a task must have failed on to be called poison."
    )
    poison_attempts: Annotated[int, Span(1, 100)] = Field(
        default=3, description="Attempts a task must have spent to be called poison."
    )

    escalate_after: Annotated[int | None, Span(1, 100)] = Field(
        default=2,
        description="Failed attempts after which a task is escalated. Not set: never.",
    )
    escalate: Annotated[Literal["event", "priority", "dead_letter"], Word] = Field(
        default="event",
        description="What escalating means: a notice, a higher priority too, or the dead letters.",
    )

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    @field_validator("*", mode="after")
    @classmethod
    def _stays_within_its_span(cls, value: object, info: ValidationInfo) -> object:
        span = mark_of(cls.model_fields[str(info.field_name)], Span)
        if span is None or not isinstance(value, int | float):
            return value
        if not span.admits(value, short=info.data.get("allow_short_clocks", False)):
            raise ValueError("outside its range")
        return value

    @field_validator("home", "config_file", "pg_bin", "redis_bin", mode="after")
    @classmethod
    def _finds_the_users_home(cls, path: Path | None) -> Path | None:
        return path and path.expanduser()

    @model_validator(mode="after")
    def _heartbeats_fit_into_leases(self) -> "Settings":
        for beat, lease in (
            ("heartbeat_interval", "lease_seconds"),
            ("agent_heartbeat_interval_sec", "agent_stale_after_sec"),
        ):
            every, within = getattr(self, beat), getattr(self, lease)
            if every * HEARTBEATS_PER_LEASE > within:
                raise ValueError(
                    f"{env_of(beat)}={every:g} and {env_of(lease)}={within:g}: three heartbeats "
                    f"must fit into one lease (heartbeat at most {within / 3:.4g}, "
                    f"or lease at least {every * 3:g})"
                )
        return self

    @model_validator(mode="after")
    def _waits_grow_to_their_limit(self) -> "Settings":
        first, longest = self.retry_initial_delay_sec, self.retry_max_delay_sec
        if first > longest:
            raise ValueError(
                f"{env_of('retry_initial_delay_sec')}={first:g} and "
                f"{env_of('retry_max_delay_sec')}={longest:g}: the first wait is above the longest"
            )
        return self

    @model_validator(mode="after")
    def _keeps_the_door_shut(self) -> "Settings":
        stays_at_home(self.no_auth, self.api_host)
        names = ("jwt_issuer", "jwt_audience", "jwt_secret", "jwt_keys")
        whole_rules(self.jwt_algorithms, {name for name in names if getattr(self, name)})
        return self

    def with_origins(self, origins: dict[str, str]) -> "Settings":
        """Remember where each value came from, for `masked`."""
        self._origins.update(origins)
        return self

    def masked(self) -> list[SettingRow]:
        """Return every setting as it may be shown to anyone."""
        return [
            SettingRow(
                name=name,
                env=env_of(name),
                value_masked=shown(field, getattr(self, name)),
                origin=self._origins.get(name, "default"),
                default=shown(field, field.default),
                legal=legal_words(field, short=self.allow_short_clocks),
                description=str(field.description),
            )
            for name, field in type(self).model_fields.items()
        ]

    def __repr_args__(self) -> list[tuple[str | None, str]]:
        return [(row.name, row.value_masked) for row in self.masked()]
