"""What `overnight.celery` refuses: each thing by its name, and with what to do instead."""

from typing import Any

import pytest
from celery import Celery

from overnight import errors
from overnight.celery import NotFromCelery, Submission, durable
from overnight.celery.task_fields import task_fields
from overnight.celery.user_choice import Users
from overnight.handlers import registry


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_handlers", {})
    monkeypatch.setattr(registry, "_sources", [])


def nothing() -> None: ...


def make_app(**conf: Any) -> Celery:
    app = Celery("refusals", broker="redis://127.0.0.1:1/0", set_as_current=False)
    app.conf.update(conf)

    @app.task(name="t", shared=False)
    def t(*_: Any) -> None: ...

    return app


@pytest.mark.parametrize(
    ("conf", "instead"),
    [
        ({"result_backend": "redis://127.0.0.1:1/0"}, "the result is stored with its task"),
        ({"task_serializer": "pickle"}, "arguments and results are JSON"),
        ({"result_serializer": "yaml"}, "arguments and results are JSON"),
        ({"task_send_sent_event": True}, r"client\.stream\(\)"),
        ({"worker_send_task_events": True}, r"client\.stream\(\)"),
        ({"task_default_rate_limit": "5/m"}, "RateLimited"),
    ],
    ids=lambda conf: next(iter(conf)) if isinstance(conf, dict) else "",
)
def test_a_setting_without_a_counterpart_is_refused(conf: dict[str, Any], instead: str) -> None:
    [name] = conf
    app = durable(make_app(**conf))

    with pytest.raises(NotFromCelery, match=rf"(?s){name}.*{instead}.*ignore="):
        app.tasks["t"].delay()
    with pytest.raises(NotFromCelery, match=name):
        registry.registered()


def test_an_ignored_setting_has_no_effect() -> None:
    durable(make_app(task_serializer="pickle"), ignore=["task_serializer"])

    assert {"celery.map", "celery.starmap", "t"} <= registry.registered().keys()


@pytest.mark.parametrize(
    ("options", "instead"),
    [
        ({"link_error": ["x"]}, "dead letter"),
        ({"serializer": "pickle"}, "use json"),
        ({"exchange": "e"}, "name a queue"),
        ({"reply_to": "q"}, "handle"),
        ({"stamped_headers": ["h"]}, r"self\.request\.headers"),
        ({"nonsense": 1}, "leave it out"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_an_option_without_a_counterpart_is_refused(options: dict[str, Any], instead: str) -> None:
    with pytest.raises(NotFromCelery, match=instead) as raised:
        task_fields(make_app(), "t", (), {}, options, queues={})

    assert next(iter(options)) in raised.value.feature


def test_what_json_cannot_hold_is_refused() -> None:
    with pytest.raises(NotFromCelery, match="the id of a row"):
        task_fields(make_app(), "t", (object(),), {}, {}, queues={})


def test_a_rate_limit_of_a_task_is_refused_where_its_handlers_are_read() -> None:
    app = make_app()
    app.tasks["t"].rate_limit = "5/m"
    durable(app)

    with pytest.raises(NotFromCelery, match=r"rate_limit='5/m' of t"):
        registry.registered()


def test_of_the_control_commands_only_revoke_is_left() -> None:
    with pytest.raises(NotFromCelery, match=r"app\.control\.ping"):
        durable(make_app()).control.ping()


def test_results_are_not_forgotten_and_have_no_callbacks() -> None:
    handle: Any = durable(make_app()).AsyncResult("task_1")

    with pytest.raises(NotFromCelery, match="retention"):
        handle.forget()
    with pytest.raises(NotFromCelery, match="chain"):
        handle.then(print)
    for read in (lambda: handle.children, handle.collect):
        with pytest.raises(NotFromCelery, match="return the ids of the tasks"):
            read()
    with pytest.raises(NotFromCelery, match="what get"):
        handle.get(callback=print)


@pytest.mark.parametrize(
    ("options", "attempts"),
    [
        ({}, 4),
        ({"max_retries": 0}, 3),
        ({"max_retries": 9}, 10),
        ({"max_retries": None}, 100),
        ({"autoretry_for": (OSError,), "retry_kwargs": {"max_retries": 6}}, 7),
    ],
)
def test_the_attempts_hold_all_retries(options: dict[str, Any], attempts: int) -> None:
    app = make_app()
    app.task(name="retried", shared=False, **options)(nothing)
    app.finalize()

    assert task_fields(app, "retried", (), {}, {}, queues={})["max_attempts"] == attempts


@pytest.mark.parametrize(("broker", "score"), [("redis://h", 20), ("amqp://h", 70)])
def test_a_priority_means_what_it_means_to_the_broker(broker: str, score: int) -> None:
    app = Celery("p", broker=broker, set_as_current=False)

    assert task_fields(app, "t", (), {}, {"priority": 2}, queues={})["priority_score"] == score


def test_a_queue_gives_its_fields_or_a_tag() -> None:
    app = make_app(task_routes={"routed": {"queue": "gpu"}})
    queues = {"gpu": {"required_capabilities": ["gpu"]}}

    routed = task_fields(app, "routed", (), {}, {}, queues=queues)
    other = task_fields(app, "t", (), {}, {"queue": "mail"}, queues=queues)

    assert (routed["required_capabilities"], routed["tags"]) == (["gpu"], [])
    assert other["tags"] == ["queue:mail"]
    assert task_fields(app, "t", (), {}, {}, queues=queues)["tags"] == []


def test_the_user_is_a_name_a_function_or_a_header() -> None:
    def tenant(submission: Submission) -> str | None:
        return submission.kwargs.get("tenant")

    keys = {"ada": "key-a", "bob": "key-b"}
    for user, submission, expected in (
        ("ada", Submission("t"), "key-a"),
        (tenant, Submission("t", kwargs={"tenant": "bob"}), "key-b"),
        (tenant, Submission("t"), None),
        ("ada", Submission("t", headers={"overnight-user": "bob"}), "key-b"),
    ):
        users = Users(None, user, keys)
        assert users.key(users.of(submission)) == expected

    with pytest.raises(errors.NotConfigured, match="'eve'"):
        Users(None, "eve", keys).key("eve")
