"""Which handlers a worker has: `echo` always, the demo handlers only where they are asked for."""

import pytest

from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.local.redis import EmbeddedRedis
from tests.support.workers import running_worker, worker_settings, working_deployment


@pytest.mark.parametrize(
    ("changes", "has_demo_handlers"),
    [({"demo_handlers": "false"}, False), ({"demo_handlers": "true"}, True)],
)
def test_a_worker_has_the_demo_handlers_only_where_they_are_asked_for(
    postgres: EmbeddedPostgres,
    template: str,
    redis: EmbeddedRedis,
    *,
    changes: dict[str, str],
    has_demo_handlers: bool,
) -> None:
    with working_deployment(postgres, template) as deployment:
        url = deployment.owner.engine.url.render_as_string(hide_password=False)
        with running_worker(worker_settings(url, redis.url, **changes)):
            types = set(deployment.one("SELECT types FROM agents")["types"])

    assert "echo" in types
    assert ({"crash", "spin"} <= types) is has_demo_handlers
    # A worker that can make a sandbox runs commands as well.
    assert types <= {"echo", "command"} or has_demo_handlers
