"""The errors of Postgres that pass: the one table from which every process decides what to do.

After such an error the same statement may succeed later. The API then responds 503 with
Retry-After, workers and sweeps try again. Every other error is a fault that trying again does not
repair.
"""

from typing import Final, NamedTuple


class PassingError(NamedTuple):
    """An error that passes: its SQLSTATE or the class of it, and what it means.

    With `repeats` the transaction is repeated at once. With `breaks` the connection is lost, and
    whether a write happened is not known.
    """

    sqlstate: str
    meaning: str
    repeats: bool = False
    breaks: bool = False


PASSING_ERRORS: Final = (
    PassingError("08", "a lost or refused connection", breaks=True),
    PassingError("25006", "a server that only reads, such as a standby"),
    PassingError("25P03", "a transaction that was idle for too long", breaks=True),
    PassingError("40001", "a serialization failure", repeats=True),
    PassingError("40P01", "a deadlock", repeats=True),
    PassingError("40", "a transaction that was rolled back"),
    PassingError("53300", "too many connections", breaks=True),
    PassingError("53", "a full disk, too little memory, or another limit"),
    PassingError("55P03", "a lock timeout", repeats=True),
    PassingError("55", "an object in another state, or in use"),
    PassingError("57P01", "a shutdown by an administrator", breaks=True),
    PassingError("57P02", "a crash of the server", breaks=True),
    PassingError("57P03", "a server that starts or stops", breaks=True),
    PassingError("57P05", "a session that was idle for too long", breaks=True),
    PassingError("57", "a statement timeout, or another operator's intervention"),
    PassingError("58", "an error of the operating system, such as a failing disk"),
)


def find_passing(sqlstate: str | None) -> PassingError | None:
    """Return the entry of an SQLSTATE, the most exact one first; None if the error stays.

    >>> find_passing("53100").meaning
    'a full disk, too little memory, or another limit'
    >>> find_passing("23505") is None
    True
    """
    if sqlstate is None:
        return None
    return next((error for error in PASSING_ERRORS if sqlstate.startswith(error.sqlstate)), None)
