"""Whole stacks of real processes."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from overnight_server.local.redis import EmbeddedRedis
from tests.support.deployment import Deployment
from tests.support.stack import Stack, stack


@pytest.fixture
def build(
    deployment: Deployment, database_url: str, redis: EmbeddedRedis, tmp_path: Path
) -> Iterator[Callable[..., Stack]]:
    """Build stacks on the test's own database; whatever they start is gone afterwards."""
    with ExitStack() as stacks:

        def one(*, redis_url: str | None = None, **changes: object) -> Stack:
            made = stack(deployment, database_url, redis_url or redis.url, tmp_path, **changes)
            return stacks.enter_context(made)

        yield one
