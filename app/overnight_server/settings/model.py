"""Every setting: its name, default, range and description."""

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
    check_no_auth,
    check_token_settings,
    days_by_rule,
    fault_points,
    key_source,
    long_secret,
    psycopg2_address,
    redis_address,
    token_algorithms,
    web_address,
)
from overnight_server.settings.field_types import (
    Alias,
    LegalValues,
    LowerCase,
    Names,
    NumberRange,
    Seconds,
    Secret,
    annotation_of,
    describe_legal_values,
    display_value,
    duration,
    env_of,
)

HEARTBEATS_PER_LEASE = 3
PORT = NumberRange(0, 65535)


class SettingRow(NamedTuple):
    """One setting for display: secrets masked, with the source of its value."""

    name: str
    env: str
    value_masked: str
    origin: str
    default: str
    legal: str
    description: str


WebAddress = Annotated[
    str | None, AfterValidator(web_address), LegalValues("an http:// or https:// address")
]


class Settings(BaseModel):
    """The settings of a process; frozen. `load` reads them.

    Durations are seconds, written as a number or with units (`90`, `90s`, `1m30s`).
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=True
    )

    # First, because the ranges of all durations below depend on it.
    allow_short_clocks: bool = Field(
        default=False,
        description="Removes the lower limit of every duration. Use it in tests and drills only: "
        "with short durations a slow moment looks like a lost lease.",
    )
    fault: Annotated[
        str | None,
        AfterValidator(fault_points),
        LegalValues("`point=mode,…`; a mode is kill, raise, drop or delay:SECONDS"),
    ] = Field(
        default=None,
        description="Makes processes fail on purpose at the named points. Use it in tests and "
        "drills only.",
    )
    home: Annotated[Path, Alias("AG_QUEUE_DIR")] = Field(
        default=Path(".overnight"),
        description="The directory in which `overnight up` keeps server data, keys, logs and run "
        "files.",
    )
    config_file: Path | None = Field(
        default=None,
        description="A JSON file with settings by name, nested or flat. Environment variables "
        "override it.",
    )
    log_format: Annotated[Literal["logfmt", "json"], LowerCase] = Field(
        default="logfmt", description="The format of the log lines on stderr."
    )
    log_level: Annotated[Literal["debug", "info", "warn", "error"], LowerCase] = Field(
        default="info", description="The lowest level that is logged."
    )

    database_url: Annotated[
        str | None,
        AfterValidator(psycopg2_address),
        Secret(),
        LegalValues("a postgresql:// or postgres:// address"),
    ] = Field(
        default=None,
        description="The address of the Postgres that stores the tasks. If it is not set, "
        "`overnight up` starts an embedded Postgres. Behind PgBouncer in transaction mode it ends "
        "in `?pooler=transaction`.",
    )
    database_pool_size: Annotated[int, NumberRange(1, 100)] = Field(
        default=5, description="The number of connections to Postgres that one process keeps open."
    )
    redis_url: Annotated[
        str | None,
        AfterValidator(redis_address),
        Secret(),
        LegalValues("a redis:// or rediss:// address"),
    ] = Field(
        default=None,
        description="The address of the Redis that carries messages and wake-ups. If it is not "
        "set, `overnight up` starts an embedded Redis.",
    )
    redis_key_prefix: str = Field(
        default="overnight:",
        description="The prefix of every key in Redis, so that several deployments can share one "
        "server.",
    )
    pg_bin: Path | None = Field(
        default=None,
        description="The directory with the programs `postgres` and `initdb` for the embedded "
        "Postgres.",
    )
    redis_bin: Path | None = Field(
        default=None,
        description="The program `redis-server` or `valkey-server` for the embedded Redis.",
    )

    api_host: str = Field(default="127.0.0.1", description="The address on which the API listens.")
    api_port: Annotated[int, PORT] = Field(
        default=0, description="The port on which the API listens; 0 selects a free port."
    )
    api_processes: Annotated[int, NumberRange(1, 64)] = Field(
        default=1, description="The number of API processes that share the port."
    )
    metrics_host: str = Field(
        default="127.0.0.1", description="The address on which `metrics_port` listens."
    )
    metrics_port: Annotated[int | None, NumberRange(1, 65535)] = Field(
        default=None,
        description="A port on which API processes serve `/metrics` without a key to everybody who "
        "reaches it. Without it, `/metrics` is on the API's port only, for keys with the scope "
        "`metrics:read`.",
    )
    trace_endpoint: WebAddress = Field(
        default=None,
        description="The address of an OpenTelemetry receiver (OTLP over HTTP) to which API and "
        "workers send traces, such as http://localhost:4318; needs the extra `otel`.",
    )
    max_connections: Annotated[int, NumberRange(1, 100_000)] = Field(
        default=1000,
        description="The number of connections that clients may have open at one API process. It "
        "is lower if the process may open too few files (`ulimit -n`). Sixteen more are accepted "
        "for health checks.",
    )
    request_header_timeout: Annotated[Seconds, duration(1, 600)] = Field(
        default=10,
        description="How long a connection may be open without a complete header of a request.",
    )
    request_memory_mb: Annotated[int, NumberRange(600, 65_536)] = Field(
        default=768,
        description="The memory in MiB that the bodies of all requests in progress may need in one "
        "API process; one user may have half of it.",
    )
    request_body_timeout: Annotated[Seconds, duration(5, 600)] = Field(
        default=60, description="How long the body of a request may take to arrive."
    )
    flower_host: str = Field(
        default="127.0.0.1", description="The address on which Flower listens."
    )
    flower_port: Annotated[int, PORT] = Field(
        default=0, description="The port on which Flower listens; 0 selects a free port."
    )
    flower_user: str = Field(default="overnight", description="The user name for Flower.")
    flower_password: Annotated[str | None, Secret()] = Field(
        default=None,
        description="The password for Flower. If it is not set, `overnight up` generates one.",
    )
    url: Annotated[WebAddress, Alias("OVERNIGHT_DIRECTOR_URL")] = Field(
        default=None,
        description="The address of the API that the client and the users' commands call. If it "
        "is not set, they call the API that `overnight up` started in this home.",
    )
    profile: str | None = Field(
        default=None,
        description="The profile that the client and the users' commands use when no address is "
        "set. If it is not set, they use the default profile.",
    )
    api_key: Annotated[str | None, Secret()] = Field(
        default=None, description="The API key that the client and the users' commands send."
    )
    task_id: str | None = Field(
        default=None,
        description="The id of the task in whose run `overnight mcp` acts; a handler gets it from "
        "`ctx.environ`.",
    )
    claim_token: Annotated[str | None, Secret()] = Field(
        default=None,
        description="The claim token of that run; a handler gets it from `ctx.environ`.",
    )

    no_auth: str | None = Field(
        default=None,
        description="The name of a user as whom requests without a key are served. It is allowed "
        "only while the API listens on this machine alone, for trying things out.",
    )
    jwt_algorithms: Annotated[
        Names,
        AfterValidator(token_algorithms),
        LegalValues("HS256 alone, or any of RS256, ES256, EdDSA, separated by commas"),
    ] = Field(
        default=(),
        description="The signature algorithms of the bearer tokens (JWT) that the API accepts "
        "besides API keys. If it is not set, the API accepts no tokens.",
    )
    jwt_secret: Annotated[
        str | None, AfterValidator(long_secret), Secret(), LegalValues("32 bytes or more")
    ] = Field(default=None, description="The secret with which tokens are signed under HS256.")
    jwt_keys: Annotated[
        str | None,
        AfterValidator(key_source),
        LegalValues("a file, or an https:// address (http:// on this machine only)"),
    ] = Field(
        default=None,
        description="The public keys that verify tokens: a PEM file, or a JWKS as a file or at an "
        "address.",
    )
    jwt_issuer: str | None = Field(
        default=None, description="The issuer (`iss`) that a token must name."
    )
    jwt_audience: str | None = Field(
        default=None, description="The audience (`aud`) that a token must name."
    )
    jwt_leeway: Annotated[Seconds, NumberRange(0, 30)] = Field(
        default=10,
        description="The number of seconds by which the clock of the token's issuer may differ.",
    )
    rate_limit_per_second: Annotated[float, NumberRange(0, 100_000)] = Field(
        default=500,
        description="The number of requests that one user may make per second on average, with all "
        "keys together and over all API processes; 0 means no limit. A forecast, a plan, an "
        "explanation or a usage breakdown counts as 20 requests.",
    )
    rate_limit_burst: Annotated[int, NumberRange(1, 1_000_000)] = Field(
        default=2000,
        description="The number of requests that one user may make at once after a pause.",
    )

    handlers: Names = Field(
        default=(),
        description="The modules, as dotted names, from which a worker imports `@handler` "
        "functions. They are imported from the worker's working directory.",
    )
    demo_handlers: bool = Field(
        default=False,
        description="Whether a worker also has the handlers for demonstrations and tests, such as "
        "`sleep`, `crash` and `spin`; every user can submit tasks of their types. `overnight up` "
        "sets it unless it is set.",
    )
    default_type: str = Field(
        default="echo", description="The type of a task that is submitted without one."
    )
    pool: str = Field(default="default", description="The pool that a worker serves.")
    concurrency: Annotated[int, NumberRange(1, 256)] = Field(
        default=2, description="The number of tasks that a worker runs at once."
    )
    capabilities: Names = Field(
        default=(),
        description="The capabilities of a worker's pool. A task that requires a capability runs "
        "only in a pool that has it.",
    )
    agent_budget_usd: Annotated[float | None, NumberRange(0, 999_999)] = Field(
        default=None,
        description="The amount in US dollars that the runs of one worker process may cost in "
        "total. If it is not set, there is no limit.",
    )
    worker_liveness: Annotated[Seconds, duration(5, 300)] = Field(
        default=15,
        description="The time without a heartbeat after which a worker's slots are no longer "
        "counted.",
    )
    bundle_max: Annotated[int, NumberRange(1, 500)] = Field(
        default=100,
        description="The largest number of short tasks that one message carries; 1 sends every "
        "task in its own message.",
    )
    bundle_seconds: Annotated[float, NumberRange(0.01, 10)] = Field(
        default=0.25,
        description="The largest expected duration, in seconds, of the tasks that one message "
        "carries.",
    )
    refill_seconds: Annotated[float, NumberRange(0, 600)] = Field(
        default=10,
        description="How many seconds a slot continues to claim tasks by itself before it "
        "takes messages again. With 0 every task is sent by message, and no slot "
        "listens for tasks while it is idle.",
    )
    max_tasks_per_child: Annotated[int, NumberRange(1, 100_000)] = Field(
        default=1000,
        description="The number of messages after which a worker replaces a pool process. While "
        "it is replaced, its slot is empty for about a second.",
    )
    max_memory_per_child_mb: Annotated[int, NumberRange(64, 1_000_000)] = Field(
        default=1024,
        description="The memory, in MB, after whose use a worker replaces a pool process when "
        "its run has ended. The modules of the handlers alone must take less.",
    )
    allowed_repositories: Names = Field(
        default=(),
        description="The git repositories that commands on this worker may work on, as paths or "
        "https URLs; an entry allows everything below it.",
    )
    run_memory_mb: Annotated[int, NumberRange(0, 1_000_000)] = Field(
        default=4096,
        description="The memory, in MB, that a run and the programs it started may use together. "
        "A run that uses more is ended as `out_of_memory`; 0 means no limit. A command in a "
        "sandbox has the limit of its plan and task instead.",
    )
    sandbox: Annotated[Literal["strict", "permissive"], LowerCase] = Field(
        default="strict",
        description="What a worker does when its machine can make no sandbox: get no commands,"
        " which wait for another worker (strict), or run them without protection (permissive).",
    )

    poll_interval: Annotated[Seconds, duration(1, 30)] = Field(
        default=5, description="How often the dispatcher looks for tasks when no wake-up arrives."
    )
    dispatch_tick_interval: Annotated[Seconds, duration(5, 300)] = Field(
        default=30, description="How often beat also dispatches tasks, in case no dispatcher runs."
    )
    claim_ttl: Annotated[
        Seconds,
        duration(30, 300),
        Alias("OVERNIGHT_STALE_CLAIMING_THRESHOLD"),
    ] = Field(
        default=60,
        description="How long a claimed task may wait for its start before the claim is released.",
    )
    heartbeat_interval: Annotated[Seconds, duration(1, 60)] = Field(
        default=10, description="How often a run renews its lease; at least three times per lease."
    )
    lease_seconds: Annotated[Seconds, duration(5, 600)] = Field(
        default=30, description="The time without a heartbeat after which a run counts as lost."
    )
    lease_check_interval: Annotated[Seconds, duration(1, 60)] = Field(
        default=5,
        description="How often beat looks for lost runs and for claims that never started.",
    )
    timeout_check_interval: Annotated[Seconds, duration(30, 300)] = Field(
        default=60, description="How often beat looks for runs that exceeded their timeout."
    )
    promote_interval: Annotated[Seconds, duration(1, 60)] = Field(
        default=5, description="How often beat makes tasks ready whose retry is due."
    )
    trigger_interval: Annotated[Seconds, duration(1, 60)] = Field(
        default=5,
        description="How often beat submits the graphs of triggers whose condition is met.",
    )
    schedule_interval: Annotated[Seconds, duration(1, 60)] = Field(
        default=5, description="How often beat submits what schedules have due."
    )
    schedule_grace: Annotated[Seconds, duration(60, 86_400)] = Field(
        default=300,
        description="By how much a fire time of a schedule may be late before it counts as missed, "
        "and the catch-up policy of the schedule decides.",
    )
    inbox_interval: Annotated[Seconds, duration(1, 60)] = Field(
        default=1.0, description="How often the inbox table is read."
    )
    drop_folder: Path | None = Field(
        default=None,
        description="A folder that is watched: files in its folder USER become tasks of that user."
        " Without it, no files are read.",
    )
    drop_interval: Annotated[Seconds, duration(1, 3600)] = Field(
        default=5, description="How often the watched folder is read."
    )
    drop_settle_seconds: Annotated[Seconds, duration(0, 3600)] = Field(
        default=2, description="How long a file in the watched folder must not have changed."
    )
    rules_interval: Annotated[Seconds, duration(1, 86400)] = Field(
        default=300, description="How often beat applies improvement rules."
    )
    bulk_interval: Annotated[Seconds, duration(1, 60)] = Field(
        default=2, description="How often beat continues bulk operations."
    )
    cycle_check_interval: Annotated[Seconds, duration(1, 3600)] = Field(
        default=60,
        description="How often beat looks for billing cycles that ended and for night windows "
        "that opened or closed. The gate also checks both at every pass.",
    )
    deadline_check_interval: Annotated[Seconds, duration(1, 3600)] = Field(
        default=15,
        description="How often beat ends tasks that did not start before their deadline.",
    )
    no_handler_timeout: Annotated[Seconds | None, duration(3600, 31_536_000)] = Field(
        default=None,
        description="The number of seconds for which a ready task waits while live workers have no "
        "handler for its type; after that it is dead-lettered as `no_handler`. If it is not set, "
        "such a task waits for ever.",
    )
    no_handler_check_interval: Annotated[Seconds, duration(1, 1200)] = Field(
        default=60,
        description="How often beat ends tasks whose type no worker handles, if "
        "`no_handler_timeout` is set.",
    )
    urgency_interval: Annotated[Seconds, duration(5, 3600)] = Field(
        default=60,
        description="How often beat raises the priority of tasks whose deadline is near.",
    )
    audit_interval: Annotated[Seconds, duration(10, 86_400)] = Field(
        default=60,
        description="How often the audit checks the next lanes, graphs and tasks.",
    )
    audit_findings_days: Annotated[int, NumberRange(1, 3650)] = Field(
        default=90,
        description="The number of days for which findings of the audit are kept after they ended.",
    )
    log_retention_days: Annotated[int, NumberRange(1, 3650)] = Field(
        default=14, description="The number of days for which the logs of runs are kept."
    )
    failed_log_retention_days: Annotated[int, NumberRange(1, 3650)] = Field(
        default=90,
        description="The number of days for which the last 64 KB of the log of a failed run are"
        " kept, if that is longer than OVERNIGHT_LOG_RETENTION_DAYS.",
    )
    artifact_retention_days: Annotated[int, NumberRange(1, 36_500)] = Field(
        default=90,
        description="The number of days for which artifacts are kept after their task has ended.",
    )
    metrics_interval: Annotated[Seconds, duration(1, 3600)] = Field(
        default=10,
        description="How often beat counts new events for `/metrics` and the statistics.",
    )
    retention_days: Annotated[
        Names,
        AfterValidator(days_by_rule),
        LegalValues("`NAME=DAYS`, separated by commas; [retention](../operations/retention.md)"),
    ] = Field(
        default=(),
        description="For how many days rows are kept that are no longer needed, where that is not"
        " the default: `tasks=60,tasks.free=30,tasks.cancelled=14,inbox=14`.",
    )
    prune_interval: Annotated[Seconds, duration(1, 86_400)] = Field(
        default=60,
        description="How often beat deletes what is older than OVERNIGHT_RETENTION_DAYS, and adds"
        " the partitions of events and logs that will be needed.",
    )
    log_retention_interval: Annotated[Seconds, duration(10, 86_400)] = Field(
        default=600, description="How often beat deletes logs that are older than their retention."
    )
    artifact_check_interval: Annotated[Seconds, duration(10, 86_400)] = Field(
        default=600,
        description="How often beat deletes artifacts that a lost run left a day ago, and those"
        " that are older than their retention.",
    )
    blob_check_interval: Annotated[Seconds, duration(10, 86_400)] = Field(
        default=3600,
        description="How often beat looks for contents in the artifact store that nobody needs.",
    )
    cancel_grace: Annotated[Seconds, duration(1, 600)] = Field(
        default=30, description="How long a cancelled run may take to stop before it is killed."
    )
    shutdown_grace: Annotated[Seconds, duration(1, 600)] = Field(
        default=5,
        description="How long running tasks may take to finish when their worker shuts down.",
    )

    agent_claim_ttl_sec: Annotated[Seconds, duration(30, 300)] = Field(
        default=60, description="How long a pull agent may take to start a task that it claimed."
    )
    dispatch_timeout: Annotated[Seconds, duration(1, 120), Alias("AG_QUEUE_DISPATCH_TIMEOUT")] = (
        Field(
            default=30,
            description="How long an HTTP agent may take to answer when it is sent a task; "
            "after that it is asked whether it has the task.",
        )
    )
    completion_poll_interval: Annotated[Seconds, duration(1, 60)] = Field(
        default=5,
        description="How often the agent driver asks HTTP agents for their health and for the "
        "state of their tasks.",
    )
    notifier_poll_interval: Annotated[Seconds, duration(1, 60)] = Field(
        default=1, description="How often the notifier looks for notifications that are due."
    )
    delivery_timeout: Annotated[Seconds, duration(1, 120)] = Field(
        default=15,
        description="How long the receiver of a notification may take to answer; after that the "
        "message is sent again later.",
    )
    delivery_max_attempts: Annotated[int, NumberRange(1, 50)] = Field(
        default=8,
        description="How often a notification is sent to a receiver that does not accept it.",
    )
    delivery_retry_delay: Annotated[Seconds, duration(1, 3600)] = Field(
        default=10,
        description="The delay before a notification is sent again; it grows fourfold each time.",
    )
    delivery_retry_max_delay: Annotated[Seconds, duration(60, 86_400)] = Field(
        default=21_600, description="The longest delay before a notification is sent again."
    )
    smtp_host: str | None = Field(
        default=None,
        description="The mail server that sends notifications. If it is not set, no mail is sent.",
    )
    smtp_port: Annotated[int, NumberRange(1, 65535)] = Field(
        default=587, description="The port of the mail server."
    )
    smtp_security: Annotated[Literal["starttls", "tls", "none"], LowerCase] = Field(
        default="starttls",
        description="How the connection to the mail server is encrypted: from the beginning"
        " (`tls`, mostly port 465), after a greeting (`starttls`), or not at all.",
    )
    smtp_user: str | None = Field(
        default=None, description="The user name at the mail server, if it asks for one."
    )
    smtp_password: Annotated[str | None, Secret()] = Field(
        default=None, description="The password at the mail server."
    )
    mail_from: str | None = Field(
        default=None,
        description="The sender of mail, such as `Overnight <overnight@example.com>`.",
    )
    mail_domains: Names = Field(
        default=(),
        description="The domains to which users may have mail sent; if it is not set, to any.",
    )
    agent_stale_after_sec: Annotated[Seconds, duration(5, 3600)] = Field(
        default=90,
        description="The time without a heartbeat after which a pull agent's run counts as lost.",
    )
    agents_max_per_user: Annotated[int, NumberRange(1, 10_000)] = Field(
        default=100,
        description="The number of pull agents of one user that may be online at once. A user may "
        "have ten times as many names of agents; those of offline agents are freed after 30 days.",
    )
    agent_types_max: Annotated[int, NumberRange(1, 1000)] = Field(
        default=100, description="The number of task types that one pull agent may declare."
    )
    agent_capabilities_max: Annotated[int, NumberRange(1, 1000)] = Field(
        default=100, description="The number of capabilities that one pull agent may offer."
    )
    agent_max_concurrent_tasks: Annotated[int, NumberRange(1, 1000)] = Field(
        default=2,
        description="The number of tasks that a pull agent may hold at once, unless the agent "
        "sets its own limit.",
    )

    max_pending_per_user: Annotated[int, NumberRange(10, 200)] = Field(
        default=50,
        description="The number of tasks that a user may have waiting, unless the user has a "
        "limit of their own.",
    )
    max_streams_per_user: Annotated[int, NumberRange(1, 10_000)] = Field(
        default=20,
        description="The number of event streams and waits that a user may have open at one API "
        "process.",
    )
    queue_max_size: Annotated[int, NumberRange(1, 100_000_000), Alias("AG_QUEUE_MAX_SIZE")] = Field(
        default=1_000_000,
        description="The number of tasks that may wait in the whole deployment.",
    )
    max_tasks_per_dag: Annotated[int, NumberRange(1, 100_000)] = Field(
        default=1000, description="The number of tasks that one graph may have."
    )
    max_spawn_depth: Annotated[int, NumberRange(0, 100)] = Field(
        default=5,
        description="How many generations of tasks may be spawned below a submitted task; with 0 "
        "no task can spawn others.",
    )
    max_children_per_task: Annotated[int, NumberRange(1, 100_000)] = Field(
        default=100, description="The number of tasks that one task may spawn."
    )
    max_artifact_bytes: Annotated[int, NumberRange(1, 10_000_000_000)] = Field(
        default=8_000_000, description="The largest size of one artifact in bytes."
    )
    max_artifact_bytes_per_task: Annotated[int, NumberRange(1, 1_000_000_000_000)] = Field(
        default=1_000_000_000,
        description="The largest size of all artifacts of one task together, in bytes.",
    )
    artifact_store: str | None = Field(
        default=None,
        description="Where the content of artifacts above 64 KB is kept: a folder that the API, the"
        " workers and maintenance share, or s3://bucket/prefix (needs the extra `s3`). If it is not"
        " set, they are kept in Postgres.",
    )
    max_artifacts_per_task: Annotated[int, NumberRange(1, 10_000)] = Field(
        default=100, description="The number of artifacts that one task may store."
    )
    slots_max: Annotated[int | None, NumberRange(1, 100_000)] = Field(
        default=None,
        description="The number of tasks that may run at once in the whole deployment. If it is "
        "not set, there is no limit.",
    )
    per_user_serialization_enabled: bool = Field(
        default=True,
        description="Whether tasks that share a lock are kept from running at the same time.",
    )
    per_user_serialization_scope: Annotated[Literal["project", "user", "none"], LowerCase] = Field(
        default="project",
        description="Which tasks share a lock: a user's tasks of one project, all tasks of a "
        "user, or none.",
    )
    per_user_serialization_lock_timeout_seconds: Annotated[Seconds, duration(60, 86_400)] = Field(
        default=3600, description="How long a lock is held without being renewed."
    )

    priority: Annotated[int, NumberRange(0, 100)] = Field(
        default=50,
        description="The stored priority of a task that is submitted without one; 0 is the most "
        "urgent.",
    )
    priority_boost_per_minute: Annotated[float, NumberRange(0, 10)] = Field(
        default=0.1,
        description="By how much the priority of a task rises each minute that it waits, if it is "
        "submitted without a rate of its own.",
    )
    max_attempts: Annotated[int, NumberRange(1, 100), Alias("AG_QUEUE_MAX_ATTEMPTS")] = Field(
        default=3,
        description="The number of attempts that may fail before a task is dead-lettered.",
    )
    retry_strategy: Annotated[
        Literal["exponential", "quadratic", "fixed", "immediate"], LowerCase
    ] = Field(default="exponential", description="How the delay grows from retry to retry.")
    retry_initial_delay_sec: Annotated[Seconds, duration(1, 86_400)] = Field(
        default=10, description="The delay before the first retry."
    )
    retry_backoff_multiplier: Annotated[float, NumberRange(1, 100)] = Field(
        default=2.0,
        description="The factor by which the delay grows with each retry under `exponential`.",
    )
    retry_quadratic_base_sec: Annotated[Seconds, duration(1, 86_400)] = Field(
        default=5,
        description="The delay under `quadratic`, which is multiplied by the square of the "
        "attempts made.",
    )
    retry_max_delay_sec: Annotated[Seconds, duration(1, 604_800)] = Field(
        default=300, description="The longest delay before a retry, jitter included."
    )
    retry_jitter: bool = Field(
        default=True,
        description="Whether each delay is multiplied by a random factor between 0.5 and 1.5.",
    )
    retry_on: Names = Field(
        default=("timeout", "crash", "rate_limit", "invalid_output", "error"),
        description="The failure reasons after which a task is retried.",
    )
    no_retry_on: Names = Field(
        default=("auth_failure", "budget_exceeded", "cancelled"),
        description="The failure reasons after which a task is never retried.",
    )
    poison_distinct_agents: Annotated[int, NumberRange(1, 100)] = Field(
        default=2,
        description="The number of workers on which a task must have failed to count as poison.",
    )
    poison_attempts: Annotated[int, NumberRange(1, 100)] = Field(
        default=3,
        description="The number of attempts that a task must have spent to count as poison.",
    )

    escalate_after: Annotated[int | None, NumberRange(1, 100)] = Field(
        default=2,
        description="The number of failed attempts after which a task is escalated. If it is not "
        "set, no task is.",
    )
    escalate: Annotated[Literal["event", "priority", "dead_letter"], LowerCase] = Field(
        default="event",
        description="What an escalation does: `event` sends a notice, `priority` also raises the "
        "priority, `dead_letter` dead-letters the task.",
    )

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    @field_validator("*", mode="after")
    @classmethod
    def _check_range(cls, value: object, info: ValidationInfo) -> object:
        limits = annotation_of(cls.model_fields[str(info.field_name)], NumberRange)
        if limits is None or not isinstance(value, int | float):
            return value
        if not limits.contains(value, short=info.data.get("allow_short_clocks", False)):
            raise ValueError("outside its range")
        return value

    @field_validator("home", "config_file", "pg_bin", "redis_bin", "drop_folder", mode="after")
    @classmethod
    def _expand_home(cls, path: Path | None) -> Path | None:
        return path and path.expanduser()

    @model_validator(mode="after")
    def _check_heartbeats(self) -> "Settings":
        interval, lease = self.heartbeat_interval, self.lease_seconds
        if interval * HEARTBEATS_PER_LEASE > lease:
            raise ValueError(
                f"{env_of('heartbeat_interval')}={interval:g} and "
                f"{env_of('lease_seconds')}={lease:g}: "
                "three heartbeats must fit into one lease "
                f"(heartbeat at most {lease / 3:.4g}, or lease at least {interval * 3:g})"
            )
        return self

    @model_validator(mode="after")
    def _check_memory(self) -> "Settings":
        process, run = self.max_memory_per_child_mb, self.run_memory_mb
        if 0 < run < process:
            raise ValueError(
                f"{env_of('max_memory_per_child_mb')}={process} and {env_of('run_memory_mb')}="
                f"{run}: a pool process must be replaced before its memory exceeds what a run may "
                f"use (process at most {run}, or run at least {process})"
            )
        return self

    @model_validator(mode="after")
    def _check_retry_delays(self) -> "Settings":
        first, longest = self.retry_initial_delay_sec, self.retry_max_delay_sec
        if first > longest:
            raise ValueError(
                f"{env_of('retry_initial_delay_sec')}={first:g} and "
                f"{env_of('retry_max_delay_sec')}={longest:g}: "
                "the first delay must not exceed the longest"
            )
        return self

    @model_validator(mode="after")
    def _check_mail(self) -> "Settings":
        if self.smtp_host is not None and self.mail_from is None:
            raise ValueError(
                f"{env_of('smtp_host')} without {env_of('mail_from')}: mail needs a sender, such as"
                " Overnight <overnight@example.com>"
            )
        return self

    @model_validator(mode="after")
    def _check_authentication(self) -> "Settings":
        check_no_auth(self.no_auth, self.api_host)
        names = ("jwt_issuer", "jwt_audience", "jwt_secret", "jwt_keys")
        check_token_settings(self.jwt_algorithms, {name for name in names if getattr(self, name)})
        return self

    def with_origins(self, origins: dict[str, str]) -> "Settings":
        """Store the source of each value, for `masked`."""
        self._origins.update(origins)
        return self

    def masked(self) -> list[SettingRow]:
        """Return every setting for display, with secrets masked."""
        return [
            SettingRow(
                name=name,
                env=env_of(name),
                value_masked=display_value(field, getattr(self, name)),
                origin=self._origins.get(name, "default"),
                default=display_value(field, field.default),
                legal=describe_legal_values(field, short=self.allow_short_clocks),
                description=str(field.description),
            )
            for name, field in type(self).model_fields.items()
        ]

    def __repr_args__(self) -> list[tuple[str | None, str]]:
        return [(row.name, row.value_masked) for row in self.masked()]
