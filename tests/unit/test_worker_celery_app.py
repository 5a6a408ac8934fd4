import logging
import sys
from pathlib import Path

import pytest
from celery import Celery

from overnight_server.dispatch.celery_settings import (
    NoBroker,
    agent_queue,
    celery_settings,
)
from overnight_server.settings import Settings, load
from overnight_worker.beat_scheduler import Scheduler
from overnight_worker.celery_log import ExitLogFilter
from overnight_worker.force_stop import FORCED_EXIT_CODE
from overnight_worker.identity import WORKER_ID
from overnight_worker.load_handlers import HandlersNotLoaded, load_handlers
from overnight_worker.presence import describe_worker


@pytest.fixture
def settings() -> Settings:
    return load({"OVERNIGHT_REDIS_URL": "redis://localhost/0", "OVERNIGHT_POOL": "night"})


def test_a_busy_worker_leaves_messages_in_the_queue_for_others(settings: Settings) -> None:
    """A claim whose message waited in a worker behind a long run would expire."""
    assert celery_settings(settings)["worker_disable_prefetch"] is True


def test_a_worker_has_its_pools_queue_and_the_queue_of_the_sweeps(settings: Settings) -> None:
    queues = celery_settings(settings)["task_queues"]

    assert isinstance(queues, tuple)
    assert [(queue.name, queue.exchange.name, queue.routing_key) for queue in queues] == [
        ("agents.night", "", "agents.night"),
        ("maintenance", "", "maintenance"),
    ]
    assert agent_queue("night") == "agents.night"


def test_a_missing_redis_url_is_named() -> None:
    with pytest.raises(NoBroker, match="OVERNIGHT_REDIS_URL"):
        celery_settings(load({}))


def test_beat_sleeps_until_a_tick_is_due_however_soon_that_is() -> None:
    app = Celery(set_as_current=False)
    soon = Scheduler(app, lazy=True).adjust(0.005)

    assert soon == 0.005


def test_a_worker_offers_the_capabilities_of_settings_and_handlers() -> None:
    load_handlers((), demo=True)
    description = describe_worker(
        load({"OVERNIGHT_POOL": "night", "OVERNIGHT_CAPABILITIES": "gpu"}), slots=3
    )

    assert (description.id, description.pool, description.slots) == (WORKER_ID, "night", 3)
    assert {"gpu", "agent:night"} <= set(description.capabilities)
    assert {"echo", "sleep", "flaky", "cost", "crash", "spin"} <= set(description.types)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("import no_such_thing", "No module named 'no_such_thing'"),
        ("raise SystemExit('no licence')", "no licence"),
        ("def broken(:", "SyntaxError"),
    ],
)
def test_an_import_error_names_the_module_and_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, expected: str
) -> None:
    (tmp_path / "handlers_under_test.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "handlers_under_test", raising=False)

    with pytest.raises(HandlersNotLoaded, match="handlers_under_test") as refused:
        load_handlers(["handlers_under_test"])
    assert expected in str(refused.value)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (f"Process 'x' exited with 'exitcode {FORCED_EXIT_CODE}'", False),
        (f"WorkerLostError('exitcode {FORCED_EXIT_CODE} Job: 0.')", False),
        ("Process 'x' exited with 'signal 9 (SIGKILL)'", True),
        ("something else", True),
    ],
)
def test_only_deaths_by_a_forced_end_are_left_out_of_the_log(*, text: str, kept: bool) -> None:
    record = logging.LogRecord("celery", logging.ERROR, "", 0, text, (), None)

    assert ExitLogFilter().filter(record) is kept
