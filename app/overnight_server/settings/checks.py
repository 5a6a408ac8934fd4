"""What the value of a setting must look like, where a type and a range do not say it."""

from urllib.parse import urlsplit

from overnight_server.fault_points import parse as parse_faults
from overnight_server.settings.field_types import env_of, is_loopback

SIGNATURES = frozenset({"HS256", "RS256", "ES256", "EdDSA"})
LEAST_SECRET_BYTES = 32


def psycopg2_address(address: str | None) -> str | None:
    """Name the driver: SQLAlchemy 2.1 would take `postgresql://` to mean psycopg 3."""
    if address is None:
        return None
    scheme, _, rest = address.partition("://")
    if scheme not in {"postgres", "postgresql", "postgresql+psycopg2"} or not rest:
        raise ValueError("not a Postgres address")
    return f"postgresql+psycopg2://{rest}"


def redis_address(address: str | None) -> str | None:
    """Take a Redis address."""
    if address is not None and not address.startswith(("redis://", "rediss://")):
        raise ValueError("not a Redis address")
    return address


def web_address(address: str | None) -> str | None:
    """Take a web address, without the slash at its end."""
    if address is None:
        return None
    if not address.startswith(("http://", "https://")):
        raise ValueError("not a web address")
    return address.rstrip("/")


def points_of_fault(words: str | None) -> str | None:
    """Take points of fault that there are."""
    if words is not None:
        parse_faults(words)
    return words


def signatures(names: tuple[str, ...]) -> tuple[str, ...]:
    """Take known algorithms; a secret and public keys must never be taken for one another."""
    if not set(names) <= SIGNATURES or ("HS256" in names and len(names) > 1):
        raise ValueError("no such algorithm, or a mixture of kinds")
    return names


def long_secret(secret: str | None) -> str | None:
    """Take a secret that cannot be guessed."""
    if secret is not None and len(secret.encode()) < LEAST_SECRET_BYTES:
        raise ValueError("too short")
    return secret


def place_of_keys(place: str | None) -> str | None:
    """Take a file, or an address that nobody can answer for on the way."""
    if place is not None and place.startswith("http://"):
        host = urlsplit(place).hostname or ""
        if not is_loopback(host):
            raise ValueError("keys must not come over an open line")
    return place


def stays_at_home(no_auth: str | None, host: str) -> None:
    """Refuse to serve requests without keys to anybody but this machine."""
    if no_auth is not None and not is_loopback(host):
        raise ValueError(
            f"{env_of('no_auth')}={no_auth} and {env_of('api_host')}={host}: "
            "without keys the API may listen on this machine only (127.0.0.1, ::1, localhost)"
        )


def whole_rules(algorithms: tuple[str, ...], known: set[str]) -> None:
    """Refuse to take tokens while anything that makes one good is left open."""
    keys = "jwt_secret" if "HS256" in algorithms else "jwt_keys"
    missing = [name for name in ("jwt_issuer", "jwt_audience", keys) if name not in known]
    if algorithms and missing:
        raise ValueError(
            f"{env_of('jwt_algorithms')}={','.join(algorithms)}: "
            f"{env_of(missing[0])} must be set too"
        )
