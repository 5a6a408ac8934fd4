"""Messages to desktops, phones and chats through Apprise, which the extra `notify` installs."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from overnight_server.domain.delivery_outcomes import Delivered, NotDelivered, Outcome
from overnight_server.notifier.contents import describe
from overnight_server.notifier.delivery_rows import Message
from overnight_server.outbound.services import MISSING, ServiceRefused, has_services, open_service

THREADS = 8


class MissingSender:
    """Stands for a way of sending that this deployment does not have."""

    def __init__(self, error: str) -> None:
        self._error = error

    async def close(self) -> None:
        """Nothing is open."""

    async def send(self, message: Message) -> Outcome:
        """Return why nothing is sent."""
        del message
        return NotDelivered(self._error)


class ServiceSender:
    """Sends to services in threads of its own, because their library blocks."""

    def __init__(self, base_url: str | None = None) -> None:
        self._base_url = base_url
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="service")

    async def close(self) -> None:
        """Begin no further message."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def send(self, message: Message) -> Outcome:
        """Send a message, and return whether the service has accepted it."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._try, message)

    def _try(self, message: Message) -> Outcome:
        channel = message.channel
        try:
            service = open_service(channel.address, any_allowed=channel.private_allowed)
        except ServiceRefused as refused:
            return NotDelivered(
                f"only an operator may add this address: it {refused}", is_final=True
            )
        if service is None:
            return NotDelivered("the address is no URL of a service", is_final=True)
        content = describe(message, self._base_url)
        # It has time limits of its own, and logs why a message was not accepted.
        if service.notify(title=content.subject, body=content.text):
            return Delivered()
        return NotDelivered("the service did not accept the message")


def open_service_sender(base_url: str | None) -> ServiceSender | MissingSender:
    """Return the sender to services, or one that says how to install it."""
    if not has_services():
        return MissingSender(f"the notifier has no services; where it runs: {MISSING}")
    return ServiceSender(base_url)
