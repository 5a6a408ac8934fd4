"""Makes its worker deaf: it asks Redis for no message while the file DEAF_WHILE exists."""

import os
from pathlib import Path
from typing import Any

from kombu.transport import redis

_CHANNEL: Any = redis.Channel
_ask = _CHANNEL._brpop_start


def _ask_unless_deaf(channel: Any, timeout: int = 1) -> None:
    if not Path(os.environ["DEAF_WHILE"]).exists():
        _ask(channel, timeout)


_CHANNEL._brpop_start = _ask_unless_deaf
