"""Errors that keep the local stack from starting; each message tells a person what to do.

LocalError
├── BinariesNotFound    no server program on this machine; names what to install or which URL to set
├── CannotDropRoot      Postgres refuses root, and this process cannot switch to another user
├── DataNotOurs         the data directory belongs to another user or another Postgres version
├── DidNotStart         a server ended, or did not respond, instead of becoming ready
├── PortTaken           a configured port is in use
├── AlreadyRunning      another supervisor runs in this home
├── CannotBackUp        the data of this home cannot be saved to that file
├── CannotRestore       a file cannot be restored into this home; nothing was changed
└── RestoreInterrupted  a restore has ended while it put the data in their place
"""


class LocalError(Exception):
    """The local stack cannot do what was requested; the message says what to do about it."""


class BinariesNotFound(LocalError):
    """A server program was not found."""


class CannotDropRoot(LocalError):
    """Postgres refuses to run as root and this process cannot switch to another user."""


class DataNotOurs(LocalError):
    """A data directory exists, but this user or this Postgres version cannot serve it."""


class DidNotStart(LocalError):
    """A server process did not become ready."""


class PortTaken(LocalError):
    """A configured port is in use."""


class AlreadyRunning(LocalError):
    """Another supervisor runs in this home."""


class CannotBackUp(LocalError):
    """The data of the home cannot be saved to this file."""


class CannotRestore(LocalError):
    """The file cannot be restored into this home; nothing was changed."""


class RestoreInterrupted(LocalError):
    """A restore has ended before all data were in their place."""
