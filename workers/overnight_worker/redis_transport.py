"""Celery's connection to Redis: forged messages are dropped, and a full Redis ends no worker."""

from typing import Any, Final, cast

from kombu.transport import TRANSPORT_ALIASES
from kombu.transport.redis import Channel, Transport
from redis.exceptions import OutOfMemoryError

from overnight_worker.message_filter import MESSAGE_FILTER

_SCHEMES: Final = ("redis", "rediss")


class FilteredChannel(Channel):
    """Reads messages from queues; text that is no JSON is dropped."""

    # A claim whose message was received but not started is released by the reaper. Kombu would
    # restore the message itself and, if Redis is down, write it to a file that nobody reads.
    do_restore = False

    def _brpop_read(self, **options: object) -> object:
        try:
            return cast("Any", super())._brpop_read(**options)  # noqa: SLF001 - not in kombu's stub
        except (ValueError, RecursionError):
            MESSAGE_FILTER.drop("malformed")
            return True


class FilteredTransport(Transport):
    """Delivers the messages that pass the filter.

    Connecting writes to Redis, which a full Redis refuses. Celery takes that for a lost connection
    and connects again.
    """

    Channel = FilteredChannel
    connection_errors = (*Transport.connection_errors, OutOfMemoryError)

    def _deliver(self, message: object, queue: str | None) -> None:
        if MESSAGE_FILTER.passes(message, queue or ""):
            super()._deliver(message, queue)


def use_filtered_transport() -> None:
    """Let all later connections to a Redis address use this transport."""
    for scheme in _SCHEMES:
        TRANSPORT_ALIASES[scheme] = f"{__name__}:{FilteredTransport.__name__}"
