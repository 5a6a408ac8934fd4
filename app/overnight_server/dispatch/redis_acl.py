"""The least that Redis must let each kind of process do: the users of its access list.

Whoever may write to the broker's keys can start anything in the workers' fleet, so the API has a
user that cannot: it may ring the bell and count requests. Flower has one that asks workers how they
are and hears what they tell, and can put no task into any queue.
"""

import hashlib
from dataclasses import dataclass
from typing import Final

from overnight_server.dispatch.celery_settings import MAINTENANCE_QUEUE, agent_queue
from overnight_server.wakeups.wake import CHANNEL, SLOTS_CHANNEL

API: Final = "overnight_api"
SERVICE: Final = "overnight_service"
FLOWER: Final = "overnight_flower"
# What every client says when it comes in.
GREETING: Final = ("auth", "hello", "ping", "select", "client|setname", "client|setinfo")
BELL: Final = ("publish",)
COUNTING: Final = ("evalsha", "script|load", "script|exists", "time", "hmget", "hset", "pexpire")
# What Celery's workers, beat and the publisher of the dispatcher send.
BROKER: Final = (
    *("lpush", "rpush", "brpop", "llen", "del", "get", "set"),
    *("zadd", "zrem", "zrange", "zrevrangebyscore", "zrangebyscore"),
    *("hset", "hget", "hdel", "sadd", "srem", "smembers"),
    *("multi", "exec", "watch", "unwatch"),
    *("evalsha", "script|load", "script|exists", "time", "info"),
    *("publish", "subscribe", "unsubscribe", "psubscribe", "punsubscribe", "pubsub|numsub"),
)
# Commands to workers, their answers, and the events that Flower listens to.
REMOTE_CONTROL: Final = ("celery.pidbox", "reply.celery.pidbox", "celeryev/*")

# What carries questions to workers and their answers: who listens, the answers' own queues, and
# what was read of them and not acknowledged.
ASKING: Final = ("_kombu.binding", "celeryev.", "*.reply.celery.pidbox", "unacked")


@dataclass(frozen=True)
class AclUser:
    """One user of the list: which keys and channels, and what may be done with them.

    Keys are patterns as Redis writes them, `~` before those that may be written too.
    """

    name: str
    keys: tuple[str, ...]
    channels: tuple[str, ...]
    commands: tuple[str, ...]

    def line(self, password: str) -> str:
        """Write the user as a line of an ACL file; the password goes in as its hash."""
        digest = hashlib.sha256(password.encode()).hexdigest()
        rules = (
            f"#{digest}",
            *self.keys,
            *(f"&{channel}" for channel in self.channels),
            "-@all",
            *(f"+{command}" for command in sorted({*GREETING, *self.commands})),
        )
        return f"user {self.name} reset on {' '.join(rules)}"


def acl_users(prefix: str, database: int = 0) -> tuple[AclUser, ...]:
    """Return the users for a deployment whose keys begin with this prefix, in this database."""
    # A pattern to listen to must stand in the list letter by letter.
    heard = tuple(f"{prefix}/{database}.{name}" for name in REMOTE_CONTROL)
    read = tuple(f"%R~{prefix}{name}*" for name in (agent_queue(""), MAINTENANCE_QUEUE))
    asked = tuple(f"~{prefix}{name}*" for name in ASKING)
    called = (f"{prefix}{CHANNEL}", f"{prefix}{SLOTS_CHANNEL}")
    return (
        AclUser(API, (f"~{prefix}rate:*",), called, (*BELL, *COUNTING)),
        AclUser(SERVICE, (f"~{prefix}*",), (f"{prefix}*", *heard), BROKER),
        AclUser(FLOWER, (*read, *asked), heard, BROKER),
    )
