"""How Celery is set up for everyone who sends or receives: one table, one place."""

from typing import Final

from kombu import Exchange, Queue

from overnight_server.settings import Settings

EXECUTE: Final = "overnight.execute"
MAINTENANCE_QUEUE: Final = "maintenance"
# The unnamed exchange routes by queue name alone. A named one keeps its bindings in Redis and
# silently drops messages after a FLUSHALL.
DIRECT: Final = Exchange("")


class NoBroker(Exception):
    """No Redis is named, so nothing can be sent or received."""

    def __init__(self) -> None:
        super().__init__(
            "OVERNIGHT_REDIS_URL is not set; name a Redis, or let `overnight up` start one"
        )


def agent_queue(pool: str) -> str:
    """Return the name of the queue that a pool's workers listen to.

    >>> agent_queue("default")
    'agents.default'
    """
    return f"agents.{pool}"


def queues(pool: str) -> tuple[Queue, ...]:
    """Declare the only two queues a process of this pool knows."""
    return tuple(
        Queue(name, exchange=DIRECT, routing_key=name)
        for name in (agent_queue(pool), MAINTENANCE_QUEUE)
    )


def celery_settings(settings: Settings, *, patience: int = 5) -> dict[str, object]:
    """Return Celery's configuration; a message is a hint, so nothing here tries to keep one.

    `patience` is how many seconds Redis may keep this process waiting for an answer.
    """
    if settings.redis_url is None:
        raise NoBroker
    return {
        "broker_url": settings.redis_url,
        **_messages(settings),
        **_connection(settings, patience),
        **_worker(settings),
    }


def _messages(settings: Settings) -> dict[str, object]:
    """Say what travels and where to: JSON, acknowledged on receipt, answered in Postgres."""
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
        # A publisher that fails gives its claims back at once; retrying here would only hold them.
        "task_publish_retry": False,
        # A misspelt queue must fail at its sender, not fill up unread.
        "task_create_missing_queues": False,
        "task_queues": queues(settings.pool),
        "task_default_queue": MAINTENANCE_QUEUE,
        "task_default_exchange": "",
        "task_default_routing_key": MAINTENANCE_QUEUE,
        "enable_utc": True,
    }


def _connection(settings: Settings, patience: int) -> dict[str, object]:
    """Bound how long Redis may keep anyone waiting."""
    return {
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        # Flower's threads each hold one; with fewer they wait for each other for ever.
        "broker_pool_limit": 32,
        "broker_transport_options": {
            "global_keyprefix": settings.redis_key_prefix,
            # Kombu would note every message that is taken, and again that it was, two trips of a
            # worker's main process, for a redelivery that comes when the claim is long given back.
            "ack_emulation": False,
            # Without these a hung Redis blocks its client for ever.
            "socket_timeout": patience,
            "socket_connect_timeout": 2,
            "socket_keepalive": True,
            "health_check_interval": 10,
        },
    }


def _worker(settings: Settings) -> dict[str, object]:
    """Say how a worker takes messages and replaces its children."""
    return {
        "worker_concurrency": settings.concurrency,
        # A message reserved behind an eight-hour run would lose its claim waiting.
        "worker_prefetch_multiplier": 1,
        "worker_disable_prefetch": True,
        "worker_eta_task_limit": 10,
        "worker_max_tasks_per_child": settings.max_tasks_per_child,
        "worker_proc_alive_timeout": 30,
        # A run that must be ended takes its child along; its slot should be free at once.
        "worker_lost_wait": 1.0,
        # Runs report to Postgres, so losing Redis is no reason to end paid work.
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        # Telling of every message costs a worker as much as taking it. Flower asks for it by
        # itself while it runs.
        "worker_send_task_events": False,
        "task_send_sent_event": False,
        # Lines are written by overnight_server.telemetry.
        "worker_hijack_root_logger": False,
        "worker_redirect_stdouts": False,
    }
