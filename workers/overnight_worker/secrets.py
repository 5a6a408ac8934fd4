"""Secrets by reference: `"secret:NAME"` in a payload becomes the secret as the handler is called.

The task's row holds the reference only. The value comes from the worker's environment:
`SECRET_NAME__<user id>` for one user's tasks, else `SECRET_NAME` for everybody's. Nothing else of
the environment can be named. Once a value was given to a handler, this process hides it in whatever
it writes: logs, output, progress, errors, and what the handler prints.
"""

import os
import re
import sys
from collections.abc import Mapping
from typing import Any, TextIO

from overnight_server.domain.ids import UserId
from overnight_server.mask import hide, mask_text

# No two underscores together: behind them stands whose a secret is, and that is not to be chosen.
REFERENCE = re.compile(r"secret:(?=.{1,64}$)([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*)")
# Hiding a shorter one would hide parts of other words, and it could be guessed anyway.
SHORTEST = 8


class SecretMissing(Exception):
    """A task refers to a secret that this worker does not have, or that is too short to hide."""

    error_class = "auth_failure"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"this worker has no secret {name}; set SECRET_{name} to {SHORTEST} characters or more"
        )


def resolve(value: Any, user_id: UserId) -> Any:  # noqa: ANN401 - any JSON value
    """Return a payload with each reference replaced by what it refers to."""
    if isinstance(value, str):
        found = REFERENCE.fullmatch(value)
        return value if found is None else _secret(found[1], user_id)
    if isinstance(value, Mapping):
        return {name: resolve(inner, user_id) for name, inner in value.items()}
    if isinstance(value, list):
        return [resolve(inner, user_id) for inner in value]
    return value


def _secret(name: str, user_id: UserId) -> str:
    own = f"SECRET_{name}__{str(user_id).replace('-', '_')}"
    value = os.environ.get(own) or os.environ.get(f"SECRET_{name}", "")
    if len(value) < SHORTEST:
        raise SecretMissing(name)
    hide(value)
    _watch_what_is_printed()
    return value


class _Masked:
    """A stream that hides secrets in what is written to it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text without its secrets."""
        self._stream.write(mask_text(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the stream has
        return getattr(self._stream, name)


def _watch_what_is_printed() -> None:
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, _Masked):
            setattr(sys, name, _Masked(stream))
