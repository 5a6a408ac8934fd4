"""The Redis users of a deployment, each with the fewest permissions its processes need.

Whoever can write to the broker's keys can start any task on the workers. So the API has its own
Redis user, which can only publish wake-ups, hear that logs have grown, and count requests. Flower
has one that can query workers and receive their events, and cannot put a task into any queue.
"""

import hashlib
from dataclasses import dataclass
from typing import Final

from overnight_server.dispatch.celery_settings import MAINTENANCE_QUEUE, OWN_QUEUES, agent_queue
from overnight_server.wakeups.wake import (
    CANCELS_CHANNEL,
    DISPATCHERS_CHANNEL,
    LOG_CHANNELS,
    SLOTS_CHANNEL,
)

API: Final = "overnight_api"
SERVICE: Final = "overnight_service"
FLOWER: Final = "overnight_flower"
# Every client sends these when it connects.
CONNECT: Final = ("auth", "hello", "ping", "select", "client|setname", "client|setinfo")
WAKE: Final = ("publish",)
# For streams of logs.
FOLLOW: Final = ("subscribe", "unsubscribe")
RATE_LIMIT: Final = ("evalsha", "script|load", "script|exists", "time", "hmget", "hset", "pexpire")
# What Celery's workers, beat and the publisher of the dispatcher send.
BROKER: Final = (
    *("lpush", "rpush", "brpop", "llen", "del", "get", "set", "expire"),
    *("zadd", "zrem", "zrange", "zrevrangebyscore", "zrangebyscore"),
    *("hset", "hget", "hdel", "sadd", "srem", "smembers"),
    *("multi", "exec", "watch", "unwatch"),
    *("evalsha", "script|load", "script|exists", "time", "info"),
    *("publish", "subscribe", "unsubscribe", "psubscribe", "punsubscribe", "pubsub|numsub"),
)
# Channels of Celery's remote control: commands to workers, their replies, and their events.
CONTROL_CHANNELS: Final = ("celery.pidbox", "reply.celery.pidbox", "celeryev/*")
# Keys of Celery's remote control: queue bindings, reply queues, and unacknowledged replies.
CONTROL_KEYS: Final = ("_kombu.binding", "celeryev.", "*.reply.celery.pidbox", "unacked")


@dataclass(frozen=True)
class AclUser:
    """One Redis user: its key patterns, channels and commands, in the syntax of Redis ACLs."""

    name: str
    keys: tuple[str, ...]
    channels: tuple[str, ...]
    commands: tuple[str, ...]

    def line(self, password: str) -> str:
        """Return the user's line of an ACL file, with the hash of the password."""
        digest = hashlib.sha256(password.encode()).hexdigest()
        rules = (
            f"#{digest}",
            *self.keys,
            *(f"&{channel}" for channel in self.channels),
            "-@all",
            *(f"+{command}" for command in sorted({*CONNECT, *self.commands})),
        )
        return f"user {self.name} reset on {' '.join(rules)}"


def acl_users(prefix: str, database: int = 0) -> tuple[AclUser, ...]:
    """Return the users of a deployment whose keys begin with `prefix` in this Redis database."""
    # Redis compares a pattern subscription with the ACL literally, so wildcards do not help here.
    control_channels = tuple(f"{prefix}/{database}.{name}" for name in CONTROL_CHANNELS)
    control_keys = tuple(f"~{prefix}{name}*" for name in CONTROL_KEYS)
    readable_queues = tuple(
        f"%R~{prefix}{name}*" for name in (agent_queue(""), MAINTENANCE_QUEUE, OWN_QUEUES)
    )
    wake_channels = tuple(
        f"{prefix}{name}" for name in (DISPATCHERS_CHANNEL, SLOTS_CHANNEL, CANCELS_CHANNEL)
    )
    return (
        AclUser(
            API,
            (f"~{prefix}rate:*",),
            (*wake_channels, f"{prefix}{LOG_CHANNELS}*"),
            (*WAKE, *FOLLOW, *RATE_LIMIT),
        ),
        AclUser(SERVICE, (f"~{prefix}*",), (f"{prefix}*", *control_channels), BROKER),
        AclUser(FLOWER, (*readable_queues, *control_keys), control_channels, BROKER),
    )
