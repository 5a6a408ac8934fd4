"""Validators of settings, for rules that a type and a range cannot express."""

from urllib.parse import urlsplit

from overnight_server.domain.retention import parse_days
from overnight_server.fault_points import parse as parse_faults
from overnight_server.settings.field_types import env_of, is_loopback

ALGORITHMS = frozenset({"HS256", "RS256", "ES256", "EdDSA"})
MIN_SECRET_BYTES = 32


def psycopg2_address(address: str | None) -> str | None:
    """Return a Postgres address that names psycopg2; raise ValueError for other addresses.

    SQLAlchemy 2.1 would use psycopg 3 for `postgresql://`.
    """
    if address is None:
        return None
    scheme, _, rest = address.partition("://")
    if scheme not in {"postgres", "postgresql", "postgresql+psycopg2"} or not rest:
        raise ValueError("not a Postgres address")
    return f"postgresql+psycopg2://{rest}"


def redis_address(address: str | None) -> str | None:
    """Return a Redis address; raise ValueError for other addresses."""
    if address is not None and not address.startswith(("redis://", "rediss://")):
        raise ValueError("not a Redis address")
    return address


def web_address(address: str | None) -> str | None:
    """Return a web address without a final slash; raise ValueError for other addresses."""
    if address is None:
        return None
    if not address.startswith(("http://", "https://")):
        raise ValueError("not a web address")
    return address.rstrip("/")


def fault_points(text: str | None) -> str | None:
    """Return the text if it names existing fault points; raise ValueError otherwise."""
    if text is not None:
        parse_faults(text)
    return text


def days_by_rule(entries: tuple[str, ...]) -> tuple[str, ...]:
    """Return the entries if each names a rule and legal days; raise ValueError otherwise."""
    parse_days(entries)
    return entries


def token_algorithms(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the JWT algorithms unchanged; raise ValueError if the combination is not allowed.

    HS256 must be the only algorithm. If a public-key algorithm were allowed too, an attacker could
    sign an HS256 token with the public key as the secret.
    """
    if not set(names) <= ALGORITHMS or ("HS256" in names and len(names) > 1):
        raise ValueError("unknown algorithm, or HS256 together with others")
    return names


def long_secret(secret: str | None) -> str | None:
    """Return a secret that is long enough; raise ValueError otherwise."""
    if secret is not None and len(secret.encode()) < MIN_SECRET_BYTES:
        raise ValueError("too short")
    return secret


def key_source(source: str | None) -> str | None:
    """Return a file or an address; raise ValueError for an unencrypted remote address."""
    if source is not None and source.startswith("http://"):
        host = urlsplit(source).hostname or ""
        if not is_loopback(host):
            raise ValueError("public keys must not be fetched without encryption")
    return source


def check_no_auth(no_auth: str | None, host: str) -> None:
    """Raise ValueError if requests without keys would be accepted from other machines."""
    if no_auth is not None and not is_loopback(host):
        raise ValueError(
            f"{env_of('no_auth')}={no_auth} and {env_of('api_host')}={host}: "
            "without keys the API may listen on this machine only (127.0.0.1, ::1, localhost)"
        )


def check_token_settings(algorithms: tuple[str, ...], present: set[str]) -> None:
    """Raise ValueError if tokens are accepted but a setting that verifies them is missing."""
    keys = "jwt_secret" if "HS256" in algorithms else "jwt_keys"
    missing = [name for name in ("jwt_issuer", "jwt_audience", keys) if name not in present]
    if algorithms and missing:
        raise ValueError(
            f"{env_of('jwt_algorithms')}={','.join(algorithms)}: "
            f"{env_of(missing[0])} must be set too"
        )
