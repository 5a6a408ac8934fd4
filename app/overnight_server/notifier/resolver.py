"""Names of hosts, looked up in a few threads that no user can take alone.

A lookup holds its thread until the name servers have answered or given up, also after the sender
has stopped waiting. Name servers are chosen by whoever owns the name, so a user could keep all
threads busy with names that are never answered.
"""

import asyncio
from asyncio import Semaphore, Task
from uuid import UUID
from weakref import WeakValueDictionary

from overnight_server.outbound.addresses import WebAddress
from overnight_server.outbound.machines import find_machine

# How many threads look names up, and how many of them for one user.
RESOLVER_THREADS = 64
LOOKUPS_PER_USER = 4


class Resolver:
    """Finds the machines of hosts, for each user a few at once."""

    def __init__(self) -> None:
        self._shares: WeakValueDictionary[UUID, Semaphore] = WeakValueDictionary()

    async def find(self, user_id: UUID, address: WebAddress, *, private_allowed: bool) -> str:
        """Return an address of the host that may be called, as `find_machine` does.

        A caller that is cancelled gives the user's place back only when the lookup has ended.
        """
        share = self._shares.get(user_id)
        if share is None:
            share = self._shares[user_id] = Semaphore(LOOKUPS_PER_USER)
        await share.acquire()
        lookup = asyncio.ensure_future(find_machine(address, private_allowed=private_allowed))

        def end(done: Task[str]) -> None:
            share.release()
            if not done.cancelled():
                # Nobody else looks at the error if the caller has gone.
                done.exception()

        lookup.add_done_callback(end)
        return await asyncio.shield(lookup)
