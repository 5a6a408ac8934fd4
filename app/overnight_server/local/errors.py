"""What can keep the deployment on one machine from standing, in words a person can act on.

LocalError
├── BinariesNotFound    no server program here; says what to install or which URL to set
├── CannotDropRoot      Postgres refuses root and this process may not become someone else
├── DataNotOurs         the data directory belongs to another user or another Postgres
├── DidNotStart         a server ended, or stayed silent, instead of becoming ready
├── PortTaken           a configured port is in use
└── AlreadyRunning      another process holds this home
"""


class LocalError(Exception):
    """The deployment cannot do what was asked; the message says what to do about it."""


class BinariesNotFound(LocalError):
    """A server program was found nowhere."""


class CannotDropRoot(LocalError):
    """Postgres refuses to run as root and no other identity can be taken on."""


class DataNotOurs(LocalError):
    """A data directory exists, but this user or this Postgres cannot serve it."""


class DidNotStart(LocalError):
    """A server process did not become ready."""


class PortTaken(LocalError):
    """A port that settings ask for is in use."""


class AlreadyRunning(LocalError):
    """Another supervisor holds this home."""
