"""Celery tasks on Overnight, compared with Celery: the same functions in its worker and in ours."""

import difflib
import gc
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chain, chord, group, states
from celery.beat import Scheduler
from celery.exceptions import ChordError, TaskRevokedError
from celery.exceptions import TimeoutError as CeleryTimeoutError
from celery.result import AsyncResult

from overnight import Client
from overnight.celery import (
    DurableResult,
    NotFromCelery,
    durable,
    durable_task,
    in_transaction,
)
from overnight_server.control.keys import issue
from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.local.redis import EmbeddedRedis
from tests.support.celery_functions import Incomplete, define
from tests.support.celery_worker import celery_worker
from tests.support.stack import SERVICES, Stack, stack
from tests.support.wait import wait_until
from tests.support.workers import ROOT, SOURCES, working_deployment

SECONDS = 60
SHOP = ROOT / "examples" / "from_celery"
GUIDE = ROOT / "docs" / "guides" / "from-celery.md"


@pytest.fixture(scope="module")
def overnight_stack(
    postgres: EmbeddedPostgres,
    template: str,
    redis: EmbeddedRedis,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stack]:
    with working_deployment(postgres, template) as deployment:
        url = deployment.owner.engine.url.render_as_string(hide_password=False)
        logs = tmp_path_factory.mktemp("celery")
        # A worker imports modules from its working directory, as the guide's shop does.
        shutil.copy(SHOP / "after" / "shop.py", logs)
        handlers = "tests.support.celery_with_overnight,shop"
        with stack(deployment, url, redis.url, logs, handlers=handlers) as made:
            yield made.start(*SERVICES).ready()


@pytest.fixture(scope="module")
def client(overnight_stack: Stack) -> Client:
    return overnight_stack.user()[1]


@pytest.fixture(scope="module")
def ours(client: Client) -> Celery:
    return define(durable(Celery("with_overnight", set_as_current=False), client=client))


@pytest.fixture(scope="module")
def theirs(redis: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Celery]:
    """Return the app of a real Celery worker."""
    address = redis.url.rpartition("/")[0] + "/7"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEST_CELERY_REDIS", address)
        from tests.support import celery_with_redis  # noqa: PLC0415 - reads the address

        log = tmp_path_factory.mktemp("worker") / "log"
        with celery_worker("tests.support.celery_with_redis", log, TEST_CELERY_REDIS=address):
            yield celery_with_redis.app
            # Celery's handles call Redis when they are deleted, and later it does not run.
            for each in gc.get_objects():
                if issubclass(type(each), AsyncResult):
                    each.backend = None


def task(app: Celery, name: str) -> Any:
    return app.tasks[f"test.{name}"]


def test_a_call_returns_a_handle_with_the_result_of_the_function(ours: Celery) -> None:
    handle = task(ours, "add").delay(2, y=3)

    assert handle.get(SECONDS) == 5
    assert (handle.state, handle.ready(), handle.successful()) == (states.SUCCESS, True, True)
    assert ours.AsyncResult(handle.id).result == 5
    assert handle.date_done > datetime(2026, 1, 1, tzinfo=UTC)


def test_dates_and_decimals_arrive_as_they_were_sent(ours: Celery, theirs: Celery) -> None:
    calls = [
        task(app, "values").delay(date(2026, 11, 1), Decimal("1.10")) for app in (ours, theirs)
    ]

    expected = {"next": datetime(2026, 11, 1, tzinfo=UTC), "twice": Decimal("2.20")}
    assert [call.get(timeout=SECONDS) for call in calls] == [expected] * 2


def test_a_failure_is_raised_with_its_class_and_arguments(ours: Celery, theirs: Celery) -> None:
    for app in (ours, theirs):
        handle = task(app, "fail").delay()

        with pytest.raises(Incomplete) as raised:
            handle.get(timeout=SECONDS)

        assert raised.value.args == ("half", 2)
        assert handle.state == states.FAILURE
        assert isinstance(handle.result, Incomplete)
        assert "raise Incomplete" in handle.traceback


def test_a_failure_without_a_retry_is_not_repeated(ours: Celery, client: Client) -> None:
    handle = task(ours, "fail").delay()
    handle.get(SECONDS, propagate=False)

    ended = client.tasks.get(handle.id)
    assert (ended.state, ended.attempts) == ("dead_lettered", 1)
    assert ended.error == "Incomplete: ('half', 2)"


def test_a_bound_task_retries_as_in_celery(ours: Celery, theirs: Celery, tmp_path: Path) -> None:
    for number, app in enumerate((ours, theirs)):
        retried = task(app, "retried").delay(2)
        automatic = task(app, "automatic").delay(str(tmp_path / str(number)))
        gives_up = task(app, "gives_up").delay()

        assert retried.get(timeout=SECONDS) == 2
        assert automatic.get(timeout=SECONDS) == 2
        with pytest.raises(ValueError, match="never"):
            gives_up.get(timeout=SECONDS)


def test_a_bound_task_sees_its_request(ours: Celery) -> None:
    handle = task(ours, "about_me").apply_async(headers={"trace": "abc"})

    assert handle.get(SECONDS) == [handle.id, 0, "test.about_me", {"trace": "abc"}]


def test_the_soft_time_limit_interrupts_the_function(ours: Celery) -> None:
    handle = task(ours, "slow").delay()

    with pytest.raises(Exception, match=r"SoftTimeLimitExceeded\(\)"):
        handle.get(SECONDS)


def test_a_task_that_waits_can_be_revoked(ours: Celery, client: Client) -> None:
    handle = task(ours, "add").apply_async((1, 1), countdown=7200)
    with pytest.raises(CeleryTimeoutError):
        handle.get(0.1)
    assert (handle.state, handle.ready()) == (states.PENDING, False)

    ours.control.revoke(handle.id)

    with pytest.raises(TaskRevokedError):
        handle.get(SECONDS)
    assert handle.state == states.REVOKED
    handle.revoke()


def test_the_options_of_a_call_become_fields_of_the_task(ours: Celery, client: Client) -> None:
    soon = datetime.now(UTC) + timedelta(hours=2)
    handle = task(ours, "add").apply_async(
        (1,),
        {"y": 2},
        eta=soon,
        expires=soon + timedelta(hours=1),
        priority=4,
        queue="reports",
        time_limit=90.5,
        task_id="my-own-id",
    )

    made = client.tasks.get(handle.id)
    assert (made.type, made.title) == ("test.add", "test.add(1, y=2)")
    assert made.payload == {"args": [1], "kwargs": {"y": 2}}
    assert (made.start_at, made.deadline_at) == (soon, soon + timedelta(hours=1))
    assert (made.priority_score, made.timeout_seconds) == (50, 91)
    assert made.tags == ["celery-id:my-own-id", "queue:reports"]
    assert ours.AsyncResult("my-own-id").graph_id == made.dag_id
    handle.revoke()


def test_a_task_sent_from_a_task_is_its_child(ours: Celery, client: Client) -> None:
    handle = task(ours, "parent").delay(4)

    child = ours.AsyncResult(handle.get(SECONDS))

    assert child.get(SECONDS) == 5
    assert client.tasks.get(child.id).parent_id == handle.id


def test_a_task_can_be_sent_by_its_name_alone(ours: Celery, client: Client) -> None:
    producer = durable(Celery("producer", set_as_current=False), client=client)

    assert producer.send_task("test.double", (21,)).get(SECONDS) == 42


# Each case builds a canvas from a function that returns a signature of one of the test's tasks.
Sign = Callable[..., Any]
CANVAS: dict[str, Callable[[Sign], Any]] = {
    "chain": lambda s: chain(s("add", 1, 2), s("add", 3), s("double")),
    "chain with |": lambda s: s("add", 1, 2) | s("add", 10),
    "partial arguments": lambda s: chain(s("same", 1, a=2), s("same", "b", c=3)),
    "immutable": lambda s: chain(s("add", 1, 2), s("add", 5, 5).set(immutable=True), s("add", 1)),
    "group": lambda s: group(s("add", n, n) for n in range(4)),
    "group of one": lambda s: group(s("add", 1, 1)),
    "empty group": lambda s: group([], app=s("double").app),
    "nested groups": lambda s: group(s("add", 1, 1), group(s("add", 2, 2), s("add", 3, 3))),
    "group of chains": lambda s: group(chain(s("add", n, 1), s("double")) for n in range(3)),
    "chord": lambda s: chord([s("add", n, n) for n in range(4)], s("total")),
    "chord of one": lambda s: chord([s("add", 2, 2)], s("total")),
    "group of one in a chain": lambda s: chain(group(s("add", 2, 2)), s("double")),
    "chord without a header": lambda s: chord([], s("total")),
    "chord with an immutable body": lambda s: chord(
        [s("add", 1, 1), s("add", 2, 2)], s("add", 7, 7).set(immutable=True)
    ),
    "chord with a chain as its body": lambda s: chord(
        [s("add", 1, 1), s("add", 2, 2)], chain(s("total"), s("add", 100))
    ),
    "chord with chains in its header": lambda s: chord(
        [chain(s("add", n, 1), s("double")) for n in range(3)], s("total")
    ),
    "chord in a chord": lambda s: chord(
        [chord([s("add", 1, 1), s("add", 2, 2)], s("total")), s("add", 5, 5)], s("total")
    ),
    "group in a chain": lambda s: chain(
        s("add", 1, 1), group(s("add", 10), s("add", 20)), s("total"), s("double")
    ),
    "group at the end of a chain": lambda s: chain(s("add", 1, 1), group(s("add", 1), s("add", 2))),
    "two groups in a chain": lambda s: chain(
        group(s("add", 1, 1), s("add", 2, 2)), group(s("same", "x"), s("total"))
    ),
    "chain of chords": lambda s: chain(
        chord([s("add", 1, 1), s("add", 2, 2)], s("total")),
        chord([s("add", 1), s("add", 2)], s("total")),
    ),
    "empty group in a chain": lambda s: chain(
        s("add", 1, 1), group([], app=s("double").app), s("double")
    ),
    "chain that fails": lambda s: chain(s("add", 1, 1), s("fail"), s("double")),
    "group with a failing member": lambda s: group(s("add", 1, 1), s("fail"), s("add", 2, 2)),
    "chord with a failing member": lambda s: chord([s("add", 1, 1), s("fail")], s("total")),
    "map": lambda s: s("double").type.map([1, 2, 3]),
    "starmap": lambda s: s("add").type.starmap([(1, 2), (3, 4)]),
    "chunks": lambda s: s("add").type.chunks([(n, n) for n in range(5)], 2),
}
# What the call of the canvas passes to its first tasks.
ARGUMENTS = {"group with arguments": (100,), "chain with arguments": (100,)}
CANVAS["group with arguments"] = lambda s: group(s("add", 1), s("add", 2))
CANVAS["chain with arguments"] = lambda s: chain(s("add", 1), s("add", 2))


def signer(app: Celery) -> Sign:
    return lambda name, *args, **kwargs: task(app, name).s(*args, **kwargs)


def outcome(handle: Any) -> object:
    """Return what a caller gets: the result, or the exception with its arguments."""
    try:
        return handle.get(timeout=SECONDS)
    except Exception as error:  # noqa: BLE001 - it is compared
        return (type(error).__name__, error.args)


@pytest.fixture(scope="module")
def canvas_outcomes(ours: Celery, theirs: Celery) -> dict[str, dict[str, object]]:
    """Return what both give for each case; all are sent before the first is awaited."""
    handles = {
        app.main: {
            name: build(signer(app)).apply_async(ARGUMENTS.get(name, ()))
            for name, build in CANVAS.items()
        }
        for app in (ours, theirs)
    }
    return {
        app: {name: outcome(handle) for name, handle in sent.items()}
        for app, sent in handles.items()
    }


@pytest.mark.parametrize("name", CANVAS)
def test_a_canvas_gives_what_celery_gives(
    name: str, canvas_outcomes: dict[str, dict[str, object]]
) -> None:
    given = canvas_outcomes["with_overnight"][name]

    assert given == canvas_outcomes["with_redis"][name]
    assert given is not None


def test_the_members_of_a_failed_group_keep_their_results(ours: Celery, theirs: Celery) -> None:
    for app in (ours, theirs):
        sign = signer(app)
        handle = group(sign("add", 1, 1), sign("fail"), sign("add", 2, 2)).apply_async()

        [first, failed, last] = handle.get(timeout=SECONDS, propagate=False)

        assert (first, last) == (2, 4)
        assert isinstance(failed, Incomplete)
        assert (handle.ready(), handle.successful(), handle.failed()) == (True, False, True)
        assert handle.completed_count() == 2


def test_the_body_of_a_chord_with_a_failed_member_has_failed(ours: Celery, theirs: Celery) -> None:
    for app in (ours, theirs):
        handle = CANVAS["chord with a failing member"](signer(app)).apply_async()
        wait_until(handle.ready, what="the body to have an outcome")

        assert handle.state == states.FAILURE
        assert isinstance(handle.result, ChordError)
        assert re.fullmatch(r"Dependency \S+ raised Incomplete\('half', 2\)", str(handle.result))
        assert not handle.parent[0].failed()


def test_a_canvas_is_one_graph(ours: Celery, client: Client) -> None:
    handle = CANVAS["group in a chain"](signer(ours)).apply_async()

    assert handle.get(SECONDS) == 68
    graph = client.dags.get(handle.graph_id)
    assert [each.name for each in graph.tasks] == ["add-1", "add-2", "add-3", "total-4", "double-5"]
    assert handle.parent.parent.get(SECONDS) == [12, 22]


def test_a_link_runs_after_its_task(ours: Celery, client: Client) -> None:
    sign = signer(ours)

    handle = task(ours, "add").apply_async((1, 2), link=sign("add", 10))

    assert handle.get(SECONDS) == 3
    [_, linked] = client.dags.wait(handle.graph_id, timeout=SECONDS).tasks
    assert ours.AsyncResult(linked.id).get(SECONDS) == 13


def test_a_running_task_sends_a_canvas_as_its_children(ours: Celery, client: Client) -> None:
    handle = task(ours, "canvas").delay(5)

    last = ours.AsyncResult(handle.get(SECONDS))

    assert last.get(SECONDS) == 18
    assert client.tasks.get(last.id).parent_id == handle.id


def test_a_repeated_run_sends_again_only_what_is_new(ours: Celery, client: Client) -> None:
    handle = task(ours, "resends").delay()

    first, second, new = (ours.AsyncResult(each) for each in handle.get(SECONDS))

    assert (first.get(SECONDS), second.get(SECONDS), new.get(SECONDS)) == (2, 2, 101)
    others = [each for each in client.dags.get(handle.graph_id).tasks if each.id != handle.id]
    assert len(others) == 4
    assert {first.id, second.id, new.id} < {each.id for each in others}


def test_a_task_that_replaces_itself_is_refused(ours: Celery) -> None:
    with pytest.raises(Exception, match=r"self\.replace\(\) is not kept"):
        task(ours, "replaced").delay().get(SECONDS)


def test_the_state_that_a_task_updates_is_its_progress(
    ours: Celery, client: Client, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    handle = task(ours, "reports").delay(str(seen))

    progress = wait_until(lambda: client.tasks.get(handle.id).progress, what="the progress")
    seen.touch()

    assert progress == {"fraction": 0.5, "message": "HALF", "current": 1, "total": 2}
    assert handle.get(SECONDS) is None


def test_a_task_sent_in_a_transaction_exists_only_if_it_commits(
    ours: Celery, overnight_stack: Stack
) -> None:
    engine = overnight_stack.deployment.owner.engine
    with engine.connect() as connection, in_transaction(connection):
        rolled_back = task(ours, "add").delay(1, 1)
        connection.rollback()
    with engine.connect() as connection, in_transaction(connection):
        committed = task(ours, "add").delay(2, 2)
        assert committed.state == states.PENDING
        connection.commit()

    assert committed.get(SECONDS) == 4
    assert ours.AsyncResult(committed.id).get(SECONDS) == 4
    assert rolled_back.state == states.PENDING


def test_a_canvas_sent_in_a_transaction_is_whole(ours: Celery, overnight_stack: Stack) -> None:
    sign = signer(ours)
    with overnight_stack.deployment.owner.engine.begin() as connection, in_transaction(connection):
        handle = chain(
            group(sign("add", 1, 1), sign("add", 2, 2)), sign("total"), sign("add", 10)
        ).delay()
        alone = chain(sign("double", 4)).delay()

    assert handle.get(SECONDS) == 16
    assert handle.parent.parent.get(SECONDS) == [2, 4]
    assert alone.get(SECONDS) == 8


def test_a_program_can_name_its_open_transaction_once_for_all_calls(
    client: Client, overnight_stack: Stack
) -> None:
    transactions: list[Any] = []
    app = durable(
        Celery("shop", set_as_current=False),
        client=client,
        connection=lambda: transactions[-1] if transactions else None,
    )

    with overnight_stack.deployment.owner.engine.connect() as connection:
        transactions.append(connection)
        inside = app.send_task("test.double", (1,))
        transactions.clear()
        connection.rollback()
    outside = app.send_task("test.double", (2,))

    assert outside.get(SECONDS) == 4
    assert inside.state == states.PENDING


def test_a_task_belongs_to_the_user_that_the_program_chooses(overnight_stack: Stack) -> None:
    keys = {}
    for name in ("ben", "cleo"):
        user_id, _ = overnight_stack.user(name)
        keys[name] = issue(overnight_stack.deployment.app, user_id, name="producer")
    url = f"http://127.0.0.1:{overnight_stack.settings.api_port}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OVERNIGHT_URL", url)
        app = durable(
            Celery("tenants", set_as_current=False),
            user=lambda submission: submission.kwargs["y"],
            keys=keys,
        )
        by_argument = app.send_task("test.add", ("hello ",), {"y": "ben"})
        by_header = app.send_task(
            "test.add", ("hello ",), {"y": "ben"}, headers={"overnight-user": "cleo"}
        )
        with overnight_stack.deployment.owner.engine.begin() as tx, in_transaction(tx):
            by_inbox = app.send_task("test.add", ("bye ",), {"y": "cleo"})

        assert [each.get(SECONDS) for each in (by_argument, by_header, by_inbox)] == [
            "hello ben",
            "hello ben",
            "bye cleo",
        ]
    owners = {
        row["name"]: row["n"]
        for row in overnight_stack.deployment.rows(
            "SELECT u.name, count(*) AS n FROM tasks t JOIN users u ON u.id = t.user_id"
            " WHERE u.name IN ('ben', 'cleo') GROUP BY u.name"
        )
    }
    assert owners == {"ben": 1, "cleo": 2}


def run_shop(code: str, *arguments: str, **env: str) -> None:
    """Run the shop's tests, or other code of it, as a process of its own."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=SHOP,
        env={**os.environ, **env, "PYTHONPATH": os.pathsep.join([str(SHOP / code), SOURCES])},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_shop_of_the_guide_passes_its_tests_before_and_after(
    overnight_stack: Stack, client: Client, redis: EmbeddedRedis, tmp_path: Path
) -> None:
    address = redis.url.rpartition("/")[0] + "/8"
    tests = ("-m", "unittest", "test_shop")
    old = {"REDIS_URL": address, "PYTHONPATH": os.pathsep.join([str(SHOP / "before"), SOURCES])}
    with celery_worker("shop", tmp_path / "before.log", **old):
        run_shop("before", *tests, REDIS_URL=address)
    # A task that waits in the broker while the program moves.
    run_shop("before", "-c", "import shop; shop.remind.delay('bob')", REDIS_URL=address)

    user_id, _ = overnight_stack.user("shop")
    new = {
        "OVERNIGHT_URL": f"http://127.0.0.1:{overnight_stack.settings.api_port}",
        "OVERNIGHT_API_KEY": issue(overnight_stack.deployment.app, user_id, name="shop"),
        "REDIS_URL": address,
    }
    run_shop("after", *tests, **new)

    moved = {**old, "PYTHONPATH": os.pathsep.join([str(SHOP / "after"), SOURCES])}
    log = tmp_path / "after.log"
    with celery_worker("shop", log, **moved):
        wait_until(lambda: "bob: are you content?" in log.read_text(), what="the old task to run")
    states_of = overnight_stack.deployment.rows(
        "SELECT type, state FROM tasks WHERE user_id = :user ORDER BY type, state", user=user_id
    )
    assert [(row["type"], row["state"]) for row in states_of] == [
        ("shop.charge", "completed"),
        ("shop.receipt", "completed"),
        ("shop.remind", "cancelled"),
        ("shop.reserve", "completed"),
        ("shop.reserve", "completed"),
        ("shop.reserve", "dead_lettered"),
    ]


def test_the_guide_shows_the_whole_difference_between_the_two_shops() -> None:
    before, after = (
        (SHOP / each / "shop.py").read_text().splitlines() for each in ("before", "after")
    )
    lines = list(difflib.unified_diff(before, after, lineterm="", n=0))
    difference = "\n".join(line for line in lines[2:] if not line.startswith("@@"))

    assert f"```diff\n{difference}\n```" in GUIDE.read_text()


def test_one_durable_task_leaves_the_others_of_its_app_with_celery(
    overnight_stack: Stack, client: Client, theirs: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    user_id, _ = overnight_stack.user("mixed")
    key = issue(overnight_stack.deployment.app, user_id, name="mixed")
    monkeypatch.setenv("OVERNIGHT_URL", f"http://127.0.0.1:{overnight_stack.settings.api_port}")
    monkeypatch.setenv("OVERNIGHT_API_KEY", key)
    app = Celery("mixed", set_as_current=False)
    app.conf.update(
        {
            name: theirs.conf[name]
            for name in (
                *("broker_url", "result_backend"),
                *("broker_transport_options", "result_backend_transport_options"),
            )
        }
    )
    define(app)
    durable_task(task(app, "add"))

    kept, other = task(app, "add").delay(1, 2), task(app, "double").delay(3)

    assert (kept.get(SECONDS), other.get(timeout=SECONDS)) == (3, 6)
    assert isinstance(kept, DurableResult)
    assert not isinstance(other, DurableResult)
    assert app.AsyncResult(kept.id).state == app.AsyncResult(other.id).state == states.SUCCESS
    with pytest.raises(NotFromCelery, match=r"a canvas with test\.double"):
        chain(task(app, "add").s(1, 2), task(app, "double").s()).delay()
    assert chain(task(app, "double").s(1), task(app, "double").s()).delay().get(SECONDS) == 4
    mine = overnight_stack.deployment.rows(
        "SELECT type FROM tasks WHERE user_id = :user", user=user_id
    )
    assert [row["type"] for row in mine] == ["test.add"]
    other.backend = None


def test_shared_tasks_send_through_the_app_of_the_program(ours: Celery, client: Client) -> None:
    handle = ours.send_task("test.shared_parent", (21,))

    app, child = handle.get(SECONDS)

    assert app == "with_overnight"
    assert ours.AsyncResult(child).get(SECONDS) == 42
    assert client.tasks.get(child).parent_id == handle.id


def test_what_beat_sends_becomes_a_task(ours: Celery, client: Client) -> None:
    beat = Scheduler(app=ours, lazy=True)
    entry = beat.Entry(
        app=ours,
        name="every hour",
        task="test.add",
        schedule=3600,
        args=(1, 2),
        options={"expires": 3600},
    )

    handle = beat.apply_async(entry, producer=object(), advance=False)

    assert handle.get(SECONDS) == 3
    assert client.tasks.get(handle.id).deadline_at is not None
