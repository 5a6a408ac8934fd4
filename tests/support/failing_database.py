"""Make a real Postgres refuse nearly every statement of a deployment with one SQLSTATE."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.deployment import Deployment

#: Errors that a long-lived process must survive, with what each means: of each kind in the table of
#: passing errors, and some that do not pass.
SQLSTATES = {
    "25006": "a standby that only reads",
    "40P01": "a deadlock",
    "42501": "a missing right",
    "53100": "a full disk",
    "53300": "too many connections",
    "55P03": "a lock timeout",
    "57014": "a statement timeout",
    "57P01": "a shutdown by an administrator",
    "57P03": "a server that is starting",
    "XX000": "an internal error",
}


@contextmanager
def refusing(deployment: Deployment, sqlstate: str) -> Iterator[str]:
    """Let every statement that reads the clock fail; yield the text of the error.

    Almost every statement reads the clock. `tasks_with_events` is the part of an event stream's
    query that does not.
    """
    message = f"refused with {sqlstate}"
    functions = [
        deployment.one("SELECT pg_get_functiondef(CAST(:name AS regproc)) AS sql", name=name)["sql"]
        for name in ("clock", "tasks_with_events")
    ]
    for sql in functions:
        head = sql[: sql.upper().index("LANGUAGE")]
        deployment.run(
            f"{head} LANGUAGE plpgsql STABLE SECURITY DEFINER AS"
            f" $$BEGIN RAISE EXCEPTION '{message}' USING ERRCODE = '{sqlstate}'; END$$"
        )
    try:
        yield message
    finally:
        with deployment.owner.engine.begin() as tx:
            for sql in functions:
                tx.exec_driver_sql(sql)
