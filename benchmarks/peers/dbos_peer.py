"""DBOS with a partitioned queue: each user is a partition with as many slots as the plan."""

import threading

import sqlalchemy
from dbos import DBOS, DBOSClient, EnqueueOptions  # type: ignore[import-not-found]

from benchmarks.peers.protocol import Peer, run
from benchmarks.start_marks import mark

QUEUE = "jobs"
PER_USER = 3
#: A tenth of its default, or a drain would mostly wait for the next look.
POLLING_SECONDS = 0.1
NAME = "overbench"
VERSION = "1"


def noop(label: int) -> None:
    """Do nothing."""
    mark(label)


class Dbos(Peer):
    """Workflows without steps, enqueued by its client."""

    def open(self) -> None:
        """Connect as a client."""
        self._client = DBOSClient(system_database_url=self.database_url, application_name=NAME)
        url = self.database_url.replace("postgresql://", "postgresql+psycopg://", 1)
        self._engine = sqlalchemy.create_engine(url)

    def close(self) -> None:
        """Close the client."""
        self._client.destroy()
        self._engine.dispose()

    def install(self) -> None:
        """Launch once, which creates the tables and the queue."""
        self._launch()
        DBOS.destroy()

    def submit(self, user: int, label: int) -> None:
        """Enqueue one workflow."""
        self._client.enqueue(self._options(user), label)

    def submit_batch(self, user: int, size: int) -> None:
        """Enqueue many workflows in one transaction, because there is no batch."""
        with self._engine.begin() as connection:
            for _ in range(size):
                self._client.enqueue_in_transaction(connection, self._options(user), 0)

    def work(self) -> None:
        """Run one executor until the process ends."""
        self._launch()
        threading.Event().wait()

    def _launch(self) -> None:
        DBOS(
            config={
                "name": NAME,
                "system_database_url": self.database_url,
                "application_version": VERSION,
                "log_level": "ERROR",
            }
        )
        DBOS.workflow(name="noop")(noop)
        DBOS.launch()
        DBOS.register_queue(
            QUEUE, partition_concurrency=PER_USER, polling_interval_sec=POLLING_SECONDS
        )

    def _options(self, user: int) -> EnqueueOptions:
        return EnqueueOptions(
            workflow_name="noop",
            queue_name=QUEUE,
            queue_partition_key=f"user-{user}",
            app_version=VERSION,
        )


if __name__ == "__main__":
    run(Dbos)
