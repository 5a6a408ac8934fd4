"""What a receiver's answer means for a message: delivered, tried again later, or given up."""

from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

FACTOR = 4
# The longest wait that a receiver may ask for.
MAX_RETRY_AFTER = 86_400.0
JITTER = 0.2


@dataclass(frozen=True)
class Delivered:
    """The receiver has accepted the message."""

    status: int | None = None


@dataclass(frozen=True)
class NotDelivered:
    """The receiver has not accepted the message.

    `retry_after`: it asked for so many seconds of rest. `is_final`: it will never accept this
    message. `is_gone`: it wants no messages at all.
    """

    error: str
    status: int | None = None
    retry_after: float = 0.0
    is_final: bool = False
    is_gone: bool = False


@dataclass(frozen=True)
class SendInterrupted:
    """The sender ended before the answer; the message may have arrived."""


Outcome = Delivered | NotDelivered | SendInterrupted


@dataclass(frozen=True)
class DeliveryRetries:
    """How often a message is tried, and after which waits."""

    max_attempts: int = 8
    first_seconds: float = 10.0
    longest_seconds: float = 21_600.0

    def next_try(self, attempts: int, failure: NotDelivered, chance: float) -> float | None:
        """Return the seconds until the next try after so many attempts; None if there is none.

        `chance` in [0, 1) spreads the tries, so that messages that failed together do not all come
        back at one moment.

        >>> policy = DeliveryRetries(max_attempts=3)
        >>> [policy.next_try(attempts, NotDelivered("down"), 0.5) for attempts in (1, 2, 3)]
        [10.0, 40.0, None]
        """
        if failure.is_final or failure.is_gone or attempts >= self.max_attempts:
            return None
        wait = min(self.first_seconds * float(FACTOR ** (attempts - 1)), self.longest_seconds)
        return max(wait, failure.retry_after) * (1 + JITTER * (2 * chance - 1))


def retry_after_seconds(value: str | None, now: datetime) -> float:
    """Return the wait that a header `Retry-After` asks for; 0 for none, and for what is unreadable.

    >>> retry_after_seconds("120", datetime.now(UTC))
    120.0
    """
    text = (value or "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), MAX_RETRY_AFTER)
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return 0.0
    seconds = (at if at.tzinfo else at.replace(tzinfo=UTC)) - now
    return max(0.0, min(seconds.total_seconds(), MAX_RETRY_AFTER))
