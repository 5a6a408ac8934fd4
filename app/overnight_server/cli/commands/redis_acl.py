"""`overnight redis-acl`: the least that Redis must let our processes do."""

import secrets
from urllib.parse import urlsplit

from overnight_server.cli import connection
from overnight_server.cli.terminal import options, output


def redis_acl(*, as_json: options.Json = False) -> None:
    """Print an access list for Redis with new passwords: for the API, for Flower, for the rest."""
    from overnight_server.dispatch.redis_acl import acl_users

    known = connection.settings()
    path = urlsplit(known.redis_url or "").path.strip("/")
    users = acl_users(known.redis_key_prefix, int(path) if path.isdigit() else 0)
    made = [(user, secrets.token_urlsafe(24)) for user in users]
    lines = ["user default off", *(user.line(password) for user, password in made)]
    if as_json:
        output.document({"acl": lines, "passwords": {user.name: word for user, word in made}})
        return
    for line in lines:
        output.line(line)
    output.note("Keep these lines in Redis's aclfile; they hold hashes only. The passwords, once:")
    for user, password in made:
        output.note(f"{user.name}: {password}")
