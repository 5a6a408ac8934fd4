"""Secrets by reference: `"secret:NAME"` in a payload is replaced when the handler is called.

The task's row holds only the reference. The value comes from the worker's environment:
`SECRET_NAME__<user id>` for one user's tasks, else `SECRET_NAME` for all users. No other variable
of the environment can be referenced. Once a handler has received a value, this process masks it in
everything it writes: logs, output, progress, errors, and what the handler prints.
"""

import os
import re
from collections.abc import Mapping
from typing import Any

from overnight_server.domain.ids import UserId
from overnight_server.mask import add_secret
from overnight_worker import run_output

# A user's own secret is in the variable SECRET_<NAME>__<USER ID>. The pattern allows no two
# underscores in a name, so that no payload can name the variable of another user.
REFERENCE = re.compile(r"secret:(?=.{1,64}$)([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*)")
# Masking a shorter value would mask parts of other texts.
MIN_LENGTH = 8


class SecretMissing(Exception):
    """A task refers to a secret that this worker does not have, or that is too short to hide."""

    error_class = "auth_failure"

    def __init__(self, secret: str, variable: str) -> None:
        super().__init__(
            f"this worker has no secret {secret}; set {variable} to {MIN_LENGTH} characters or more"
        )


def resolve(
    value: Any,  # noqa: ANN401 - any JSON value
    user_id: UserId,
    *,
    own_only: bool = False,
) -> Any:  # noqa: ANN401 - the same
    """Return a payload with each reference replaced by its secret; raise SecretMissing.

    With `own_only` the deployment's secrets are not read: for values that a program gets which
    the user has chosen.
    """
    if isinstance(value, str):
        reference = REFERENCE.fullmatch(value)
        return value if reference is None else _secret(reference[1], user_id, own_only=own_only)
    if isinstance(value, Mapping):
        return {name: resolve(inner, user_id, own_only=own_only) for name, inner in value.items()}
    if isinstance(value, list):
        return [resolve(inner, user_id, own_only=own_only) for inner in value]
    return value


def _secret(name: str, user_id: UserId, *, own_only: bool) -> str:
    user_variable = f"SECRET_{name}__{str(user_id).replace('-', '_')}"
    value = os.environ.get(user_variable, "")
    if not value and not own_only:
        value = os.environ.get(f"SECRET_{name}", "")
    if len(value) < MIN_LENGTH:
        if own_only:
            raise SecretMissing(f"{name} of the task's owner", user_variable)
        raise SecretMissing(name, f"SECRET_{name}")
    add_secret(value)
    run_output.install()
    return value
