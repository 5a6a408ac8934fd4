"""Raw Celery on Redis, as its guide sets it up: prefork, no results, JSON."""

import os

from celery import Celery

from benchmarks.peers.protocol import Peer, run
from benchmarks.start_marks import mark

QUEUE = "raw"

app = Celery("raw", broker=os.environ.get("PEER_REDIS_URL"), set_as_current=False)
app.conf.update(
    task_ignore_result=True,
    task_default_queue=QUEUE,
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
)


@app.task(name="noop")
def noop(label: int) -> None:
    """Do nothing."""
    mark(label)


class RawCelery(Peer):
    """One message for each job; a batch is a loop."""

    def install(self) -> None:
        """Do nothing: Redis needs no tables."""

    def open(self) -> None:
        """Open the producer's connection."""
        self._connection = app.connection_for_write()
        self._producer = app.amqp.Producer(self._connection)

    def close(self) -> None:
        """Close the connection."""
        self._connection.release()

    def submit(self, user: int, label: int) -> None:
        """Send one message."""
        del user
        noop.apply_async((label,), producer=self._producer)

    def submit_batch(self, user: int, size: int) -> None:
        """Send many messages, one after the other."""
        for _ in range(size):
            self.submit(user, 0)

    def work(self) -> None:
        """Run a worker of two processes."""
        app.worker_main(
            [
                *("worker", "--pool", "prefork", "--concurrency", str(self.options["slots"])),
                *("--loglevel", "WARNING", "--without-gossip", "--without-mingle"),
                *("--queues", QUEUE),
            ]
        )


if __name__ == "__main__":
    run(RawCelery)
