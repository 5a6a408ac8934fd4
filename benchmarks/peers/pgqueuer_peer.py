"""PgQueuer in one process with batches of a hundred; it has no limits per user."""

import asyncio
from typing import Any

import asyncpg  # type: ignore[import-not-found]
from pgqueuer import PgQueuer  # type: ignore[import-not-found]
from pgqueuer.queries import Queries  # type: ignore[import-not-found]

from benchmarks.peers.protocol import Peer, run
from benchmarks.start_marks import mark

BATCH = 100


class Pgqueuer(Peer):
    """Jobs through its own queries over asyncpg."""

    def open(self) -> None:
        """Connect as a producer with an event loop of its own."""
        self._loop = asyncio.new_event_loop()
        self._connection: Any = self._loop.run_until_complete(asyncpg.connect(self.database_url))
        self._queries = Queries.from_asyncpg_connection(self._connection)

    def close(self) -> None:
        """Close the connection and the loop."""
        self._loop.run_until_complete(self._connection.close())
        self._loop.close()

    def install(self) -> None:
        """Create its tables."""
        self.open()
        self._loop.run_until_complete(self._queries.install())
        self.close()

    def submit(self, user: int, label: int) -> None:
        """Enqueue one job."""
        del user
        self._loop.run_until_complete(self._queries.enqueue("noop", str(label).encode()))

    def submit_batch(self, user: int, size: int) -> None:
        """Enqueue many jobs in one statement."""
        del user
        self._loop.run_until_complete(
            self._queries.enqueue(["noop"] * size, [b"0"] * size, [0] * size)
        )

    def work(self) -> None:
        """Run one worker."""
        asyncio.run(self._work())

    async def _work(self) -> None:
        connection = await asyncpg.connect(self.database_url)
        queue = PgQueuer.from_asyncpg_connection(connection)

        async def noop(job: Any) -> None:  # noqa: ANN401 - its type is the peer's own
            mark(int(job.payload))

        queue.entrypoint("noop")(noop)
        await queue.run(batch_size=BATCH)


if __name__ == "__main__":
    run(Pgqueuer)
