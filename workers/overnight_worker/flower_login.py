"""Makes Flower ask for the password on every page that says something about the service.

Flower answers `/metrics` to everybody, and has no option against it. `/healthcheck` stays open: it
answers `OK` and nothing else.
"""

from flower.views.monitor import Metrics
from tornado.web import authenticated


def require_login() -> None:
    """Let Flower answer `/metrics` only to a caller with the password."""
    Metrics.get = authenticated(Metrics.get)
