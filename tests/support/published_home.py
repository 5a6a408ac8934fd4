"""A home directory of a local stack that seems to run, for commands that look for one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from overnight_server.local.home import Home, LocalConnection
from overnight_server.local.home_lock import hold


@contextmanager
def published_home(path: Path, *, api_key: str = "", **addresses: str) -> Iterator[None]:
    """Lock a home and publish these addresses; all others are empty."""
    home = Home(path)
    home.prepare()
    home.choose_ports({})
    if api_key:
        home.write_api_key(api_key)
    empty: dict[str, Any] = {field.name: "" for field in fields(LocalConnection)}
    home.publish(LocalConnection(**(empty | {"pid": os.getpid(), "ready": True} | addresses)))
    with hold(home.lock):
        yield
