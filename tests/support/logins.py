"""A test database as the processes' own logins see it, not as its owner does."""

from sqlalchemy.engine import make_url

from overnight_server.local.postgres import API_LOGIN, SERVICE_LOGIN, EmbeddedPostgres

_known: dict[tuple[str, int | None], EmbeddedPostgres] = {}


def remember(server: EmbeddedPostgres) -> None:
    """Remember a server whose logins have their passwords."""
    url = make_url(server.url())
    _known[str(url.host), url.port] = server


def for_api(url: str) -> str:
    """Return the address with the API's login; that of a server we do not know as it is."""
    return _with(url, API_LOGIN)


def for_service(url: str) -> str:
    """Return the address with the login of dispatcher, workers and maintenance."""
    return _with(url, SERVICE_LOGIN)


def _with(url: str, login: str) -> str:
    parsed = make_url(url)
    server = _known.get((str(parsed.host), parsed.port))
    return url if server is None else server.url(str(parsed.database), login)
