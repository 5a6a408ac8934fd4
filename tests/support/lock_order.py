"""Watches the locks of a database and finds waits that contradict the lock order.

docs/architecture.md has the order. Postgres shows which advisory locks a transaction holds, and
for which advisory lock or row it waits. It does not show the row locks that a transaction holds, so
two rows taken in the wrong order are found only by a deadlock.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import text

from overnight_server.store.db import Db

PAUSE_SECONDS = 0.01
# Each kind of lock by its place in the order; relations stand for their rows.
RANKS: Mapping[str, int] = {
    "lanes": 1,
    **dict.fromkeys(("users", "dags", "tasks", "dead_letters", "bulk_operations"), 2),
    "agents": 3,
    "overnight.pools": 4,
    "overnight.pool": 5,
    **dict.fromkeys(("overnight.slots", "overnight.depth"), 6),
}
# A transaction that waits for a row holds the lock of its tuple, which names the relation, and
# waits for the transaction that changed the row.
WAITS = text("""
    WITH advisory AS (
        SELECT name, hashtext(name)::bigint & x'ffffffff'::bigint AS key
          FROM unnest(CAST(:names AS text[])) name
    ), lock AS (
        SELECT l.pid, l.granted, l.locktype,
               CASE l.locktype
                   WHEN 'advisory' THEN (SELECT name FROM advisory
                                          WHERE key = CASE l.objsubid WHEN 1 THEN l.objid::bigint
                                                                      ELSE l.classid::bigint END)
                   WHEN 'tuple' THEN (SELECT relname FROM pg_class WHERE oid = l.relation)
               END AS name
          FROM pg_locks l
         WHERE l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
            OR l.locktype = 'transactionid'
    )
    SELECT coalesce(wanted.name, row.name) AS wanted,
           array_agg(held.name) FILTER (WHERE held.name IS NOT NULL) AS held
      FROM lock wanted
      LEFT JOIN lock row ON row.pid = wanted.pid AND row.locktype = 'tuple' AND row.granted
      LEFT JOIN lock held ON held.pid = wanted.pid AND held.locktype = 'advisory' AND held.granted
     WHERE NOT wanted.granted
     GROUP BY wanted.pid, wanted.name, row.name
""")


class LockWatch:
    """Counts waits for locks, and keeps those that contradict the lock order."""

    def __init__(self) -> None:
        self.waits = 0
        self.out_of_order: set[tuple[str, str]] = set()

    def look(self, db: Db) -> None:
        """Judge every wait of this moment: (what is held, what is wanted)."""
        names = [name for name in RANKS if name.startswith("overnight.")]
        rows: list[Any] = list(db.atomically(lambda tx: tx.execute(WAITS, {"names": names}).all()))
        for row in rows:
            self.waits += 1
            self.out_of_order |= {
                (held, row.wanted)
                for held in row.held or ()
                if row.wanted in RANKS and RANKS[held] > RANKS[row.wanted]
            }


@contextmanager
def lock_watch(db: Db) -> Iterator[LockWatch]:
    """Watch the locks of the database until the block ends; `db` is connected without a role."""
    watch = LockWatch()
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(PAUSE_SECONDS):
            watch.look(db)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield watch
    finally:
        stop.set()
        thread.join()
