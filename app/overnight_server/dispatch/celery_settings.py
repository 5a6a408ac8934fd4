"""The Celery configuration that all senders and receivers share."""

from typing import Final

from kombu import Exchange, Queue

from overnight_server.settings import Settings

EXECUTE: Final = "overnight.execute"
MAINTENANCE_QUEUE: Final = "maintenance"
# The beginning of the names of queues that only one worker reads, for messages to itself.
OWN_QUEUES: Final = "canary."
# The unnamed exchange routes by queue name alone. A named one keeps its bindings in Redis and
# silently drops messages after a FLUSHALL.
DIRECT: Final = Exchange("")


class NoBroker(Exception):
    """The settings name no Redis, so nothing can be sent or received."""

    def __init__(self) -> None:
        super().__init__(
            "OVERNIGHT_REDIS_URL is not set; set it, or let `overnight up` start a Redis"
        )


def agent_queue(pool: str) -> str:
    """Return the name of the queue that a pool's workers consume.

    >>> agent_queue("default")
    'agents.default'
    """
    return f"agents.{pool}"


def queues(pool: str) -> tuple[Queue, ...]:
    """Return the two queues of a process: that of its pool, and that of the sweeps."""
    return tuple(
        Queue(name, exchange=DIRECT, routing_key=name)
        for name in (agent_queue(pool), MAINTENANCE_QUEUE)
    )


def celery_settings(settings: Settings, *, socket_timeout: int = 5) -> dict[str, object]:
    """Return Celery's configuration; raise NoBroker if the settings name no Redis.

    A lost message loses no task, so nothing here keeps or redelivers messages. `socket_timeout` is
    how many seconds a call to Redis may take.
    """
    if settings.redis_url is None:
        raise NoBroker
    return {
        "broker_url": settings.redis_url,
        **_messages(settings),
        **_connection(settings, socket_timeout),
        **_worker(settings),
    }


def _messages(settings: Settings) -> dict[str, object]:
    """Return how messages are sent: as JSON, acknowledged on receipt, without Celery results."""
    return {
        "task_serializer": "json",
        "result_serializer": "json",
        "event_serializer": "json",
        "accept_content": ["json"],
        # Postgres is the result store.
        "result_backend": None,
        "task_ignore_result": True,
        # Late acknowledgement would start a long run again at each visibility timeout.
        "task_acks_late": False,
        # A publisher that fails releases its claims at once; retries would only delay that.
        "task_publish_retry": False,
        # A misspelt queue must fail at its sender, not fill up without a consumer.
        "task_create_missing_queues": False,
        "task_queues": queues(settings.pool),
        "task_default_queue": MAINTENANCE_QUEUE,
        "task_default_exchange": "",
        "task_default_routing_key": MAINTENANCE_QUEUE,
        "enable_utc": True,
    }


def _connection(settings: Settings, socket_timeout: int) -> dict[str, object]:
    """Return the limits on how long a call to Redis may take."""
    return {
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        # Each thread of Flower holds a connection; with fewer they would deadlock.
        "broker_pool_limit": 32,
        "broker_transport_options": {
            "global_keyprefix": settings.redis_key_prefix,
            # Kombu would record and unrecord every message that is received, two round trips in a
            # worker's main process, for a redelivery that comes long after the claim is released.
            "ack_emulation": False,
            # Without these a hung Redis blocks its client for ever.
            "socket_timeout": socket_timeout,
            "socket_connect_timeout": 2,
            "socket_keepalive": True,
            "health_check_interval": 10,
        },
    }


def _worker(settings: Settings) -> dict[str, object]:
    """Return how a worker receives messages and replaces its pool processes."""
    return {
        "worker_concurrency": settings.concurrency,
        # The claim of a message that waits behind an eight-hour run would expire.
        "worker_prefetch_multiplier": 1,
        "worker_disable_prefetch": True,
        "worker_eta_task_limit": 10,
        "worker_max_tasks_per_child": settings.max_tasks_per_child,
        # In KB, and of the largest memory that the pool process has used.
        "worker_max_memory_per_child": settings.max_memory_per_child_mb * 1024,
        "worker_proc_alive_timeout": 30,
        # A forced end of a run ends its pool process; the slot should be free at once.
        "worker_lost_wait": 1.0,
        # Runs report to Postgres, so losing Redis is no reason to end paid work.
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        # Sending an event for every message costs a worker as much as receiving the message. Flower
        # switches events on by itself while it runs.
        "worker_send_task_events": False,
        "task_send_sent_event": False,
        # overnight_server.telemetry writes the log.
        "worker_hijack_root_logger": False,
        "worker_redirect_stdouts": False,
    }
