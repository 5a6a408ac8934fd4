import importlib
import logging
import sys
from pathlib import Path

import pytest
from celery import Celery

from overnight_server.dispatch.celery_settings import (
    MAINTENANCE_QUEUE,
    NoBroker,
    agent_queue,
    celery_settings,
)
from overnight_server.maintenance.sweeps import SWEEPS
from overnight_server.settings import Settings, load
from overnight_worker.beat_schedule import BEAT_SCHEDULE, SETTINGS
from overnight_worker.beat_scheduler import Scheduler
from overnight_worker.celery_logging import DeathFilter
from overnight_worker.identity import WORKER_ID
from overnight_worker.lease import FORCED_EXIT_CODE
from overnight_worker.load_handlers import HandlersNotLoaded, load_handlers
from overnight_worker.presence import agent_card


@pytest.fixture
def settings() -> Settings:
    return load({"OVERNIGHT_REDIS_URL": "redis://localhost/0", "OVERNIGHT_POOL": "night"})


def test_a_message_is_a_hint_that_celery_need_not_keep(settings: Settings) -> None:
    chosen = celery_settings(settings)

    assert chosen["accept_content"] == ["json"]
    assert chosen["task_acks_late"] is False
    assert chosen["worker_disable_prefetch"] is True
    assert chosen["result_backend"] is None
    assert chosen["task_publish_retry"] is False


def test_a_message_that_was_not_begun_is_neither_put_back_nor_written_to_a_file() -> None:
    assert importlib.import_module("overnight_worker.celery_app").Channel.do_restore is False


def test_only_the_pools_queue_and_the_sweeps_queue_are_known(settings: Settings) -> None:
    queues = celery_settings(settings)["task_queues"]

    assert isinstance(queues, tuple)
    assert [(queue.name, queue.exchange.name, queue.routing_key) for queue in queues] == [
        ("agents.night", "", "agents.night"),
        ("maintenance", "", "maintenance"),
    ]
    assert agent_queue("night") == "agents.night"


def test_no_connection_waits_for_redis_without_limit(settings: Settings) -> None:
    options = celery_settings(settings)["broker_transport_options"]

    assert isinstance(options, dict)
    assert 0 < options["socket_timeout"] <= 5
    assert 0 < options["socket_connect_timeout"] <= 5
    assert options["global_keyprefix"] == settings.redis_key_prefix


def test_without_a_redis_the_reason_is_said() -> None:
    with pytest.raises(NoBroker, match="OVERNIGHT_REDIS_URL"):
        celery_settings(load({}))


def test_beat_calls_every_sweep_once_and_on_its_own_queue() -> None:
    called = sorted(str(entry["task"]) for entry in BEAT_SCHEDULE.values())

    assert called == sorted(f"upkeep.{name}" for name in SWEEPS)
    for entry in BEAT_SCHEDULE.values():
        assert entry["options"]["queue"] == MAINTENANCE_QUEUE
        assert entry["options"]["expires"] > 0


def test_beat_sleeps_until_a_tick_is_due_however_soon_that_is() -> None:
    app = Celery(set_as_current=False)
    soon = Scheduler(app, lazy=True).adjust(0.005)

    assert soon == 0.005


def test_beat_and_the_sweeps_agree_on_every_interval() -> None:
    beats = {str(entry["task"]): entry["schedule"] for entry in BEAT_SCHEDULE.values()}

    assert beats == {f"upkeep.{name}": sweep.interval(SETTINGS) for name, sweep in SWEEPS.items()}


def test_a_worker_offers_what_it_was_told_and_what_its_handlers_can() -> None:
    load_handlers(())
    card = agent_card(load({"OVERNIGHT_POOL": "night", "OVERNIGHT_CAPABILITIES": "gpu"}), slots=3)

    assert (card.id, card.pool, card.slots) == (WORKER_ID, "night", 3)
    assert {"gpu", "agent:night"} <= set(card.capabilities)
    assert {"echo", "sleep", "flaky", "cost", "crash", "spin"} <= set(card.types)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("import no_such_thing", "No module named 'no_such_thing'"),
        ("raise SystemExit('no licence')", "no licence"),
        ("def broken(:", "SyntaxError"),
    ],
)
def test_a_module_that_cannot_be_imported_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, said: str
) -> None:
    (tmp_path / "handlers_under_test.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "handlers_under_test", raising=False)

    with pytest.raises(HandlersNotLoaded, match="handlers_under_test") as refused:
        load_handlers(["handlers_under_test"])
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (f"Process 'x' exited with 'exitcode {FORCED_EXIT_CODE}'", False),
        (f"WorkerLostError('exitcode {FORCED_EXIT_CODE} Job: 0.')", False),
        ("Process 'x' exited with 'signal 9 (SIGKILL)'", True),
        ("something else", True),
    ],
)
def test_only_deaths_we_brought_about_are_left_out_of_the_log(*, text: str, kept: bool) -> None:
    record = logging.LogRecord("celery", logging.ERROR, "", 0, text, (), None)

    assert DeathFilter().filter(record) is kept
