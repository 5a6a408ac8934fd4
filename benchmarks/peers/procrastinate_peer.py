"""Procrastinate with twenty jobs at once in one process; `locked` gives each user a lock."""

import asyncio

from procrastinate import App, PsycopgConnector  # type: ignore[import-not-found]

from benchmarks.peers.protocol import Peer, run
from benchmarks.start_marks import mark

CONCURRENCY = 20


async def noop(label: int) -> None:
    """Do nothing."""
    mark(label)


class Procrastinate(Peer):
    """Jobs through its own deferrer; a user's lock lets one of the user's jobs run at a time."""

    def open(self) -> None:
        """Connect as a synchronous producer."""
        self._app = self._new_app().open()

    def close(self) -> None:
        """Close the producer's pool."""
        self._app.close()

    def install(self) -> None:
        """Apply its schema."""
        self.open()
        self._app.schema_manager.apply_schema()
        self.close()

    def submit(self, user: int, label: int) -> None:
        """Defer one job."""
        self._app.configure_task("noop", **self._lock(user)).defer(label=label)

    def submit_batch(self, user: int, size: int) -> None:
        """Defer many jobs in one statement."""
        jobs = [{"label": 0}] * size
        self._app.configure_task("noop", **self._lock(user)).batch_defer(*jobs)

    def work(self) -> None:
        """Run one worker."""
        asyncio.run(self._work())

    async def _work(self) -> None:
        app = self._new_app()
        async with app.open_async():
            await app.run_worker_async(concurrency=CONCURRENCY)

    def _new_app(self) -> App:
        app = App(connector=PsycopgConnector(conninfo=self.database_url))
        app.task(name="noop")(noop)
        return app

    def _lock(self, user: int) -> dict[str, str]:
        return {"lock": f"user-{user}"} if self.options.get("locked") else {}


if __name__ == "__main__":
    run(Procrastinate)
