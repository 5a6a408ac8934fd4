"""After a restore to an earlier instant nothing from before is accepted, and people are told."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from overnight_server.domain.ids import (
    DagId,
    ScheduleId,
    TaskId,
    TriggerId,
    UserId,
    show_schedule,
    show_task,
    show_trigger,
)
from overnight_server.domain.results import Raised, Returned
from overnight_server.intake.new_graph import NewGraph, NewTask
from overnight_server.intake.triggers import add_trigger
from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.maintenance.after_restore import StillConnected, after_restore, check_alone
from overnight_server.maintenance.audit import audit_all
from overnight_server.maintenance.schedules import fire_schedules
from overnight_server.store import migrate
from overnight_server.store.db import Db
from tests.support.command import run
from tests.support.deployment import LOOSE, Deployment
from tests.support.notifications import add_channel, outbox
from tests.support.restored_server import (
    copy_credentials,
    deployment_on,
    give_to_server,
    open_directory,
)
from tests.support.schedules import SETTINGS, add, fires
from tests.support.wait import wait_until

ME = "human:me"


def test_it_refuses_while_processes_of_the_deployment_are_connected(
    connect: Callable[..., Db],
) -> None:
    other = connect("overnight-worker")
    with (
        other.engine.connect(),
        pytest.raises(StillConnected, match="are connected to the database"),
    ):
        check_alone(connect("overnight-cli", pool_size=1))


def test_numbers_of_claims_are_skipped_once_for_each_task_that_may_run_again(
    database_url: str,
) -> None:
    with deployment_on(database_url) as deployment:
        deployment.agent()
        user = deployment.user()
        done, failed = deployment.running(user), deployment.running(user, max_attempts=1)
        deployment.settle(done, Returned())
        deployment.settle(failed, Raised("error", "no"))
        open_run, waiting = deployment.running(user), deployment.task(user)

        restored = after_restore(deployment.dispatcher, actor=ME)

        assert [(one.task_id, one.epoch) for one in restored.runs] == [
            (show_task(open_run.claim.task_id), 1)
        ]
        assert (restored.waiting, restored.tasks_with_new_epochs) == (1, 3)
        epochs = {row["id"]: row["epoch"] for row in deployment.rows("SELECT * FROM tasks")}
        assert epochs == {
            done.claim.task_id: 1,
            failed.claim.task_id: 1_001,
            open_run.claim.task_id: 1_001,
            waiting: 1_000,
        }
        assert not deployment.settle(open_run, Returned())
        assert audit_all(deployment.dispatcher) == 0


SEQUENCES = ("events", "notifications", "notification_deliveries", "received_hooks")


def next_numbers(deployment: Deployment) -> list[int]:
    """Return the numbers that the next rows of tables get whose numbers others know."""
    return [
        deployment.one(f"SELECT nextval('{table}_id_seq') AS number")["number"]
        for table in SEQUENCES
    ]


def test_no_number_that_others_know_stands_for_two_things(database_url: str) -> None:
    with deployment_on(database_url) as deployment:
        user = deployment.user()
        add_channel(deployment, user)
        deployment.agent()
        deployment.running(user)
        before = next_numbers(deployment)
        events = deployment.one("SELECT count(*) AS number FROM events")["number"]

        after_restore(deployment.dispatcher, actor=ME)

        skipped = [
            after - number for number, after in zip(before, next_numbers(deployment), strict=True)
        ]
        assert all(number >= 10_000_000 for number in skipped), skipped
        # Those that the restore itself makes are among the new ones.
        numbers = [row["id"] for row in deployment.rows("SELECT id FROM events ORDER BY id")]
        assert len(numbers) > events
        assert all(number > 10_000_000 for number in numbers[events:])


def program(server: EmbeddedPostgres, name: str, *arguments: str) -> None:
    """Run a program of Postgres as the superuser of a server."""
    cluster = server.cluster
    environment = {
        "PGHOST": "127.0.0.1",
        "PGPORT": str(cluster.port),
        "PGUSER": "postgres",
        "PGPASSWORD": cluster.credentials.password("postgres.postgres"),
        "LC_ALL": "C",
    }
    command = [str(cluster.binaries.directory / name), *arguments]
    subprocess.run(command, env=environment, check=True, capture_output=True)


@pytest.mark.timeout(180)  # a base backup, an archive, and two servers
def test_point_in_time_recovery_as_the_page_describes_it(
    empty_environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_directory() as place:
        archive = place / "archive"
        archive.mkdir()
        (place / "first").mkdir(mode=0o711)
        first = EmbeddedPostgres(
            place / "first",
            settings={
                "archive_mode": "on",
                "archive_command": f"test ! -f {archive}/%f && cp %p {archive}/%f",
            },
        )
        give_to_server(first, archive)
        with first:
            migrate.upgrade(first.url())
            program(first, "pg_basebackup", f"--pgdata={place / 'copy'}", "--checkpoint=fast")
            with deployment_on(first.url()) as deployment:
                deployment.agent()
                user = deployment.user()
                open_run, waiting = deployment.running(user), deployment.task(user)
                schedule, trigger = make_due(deployment, user, waiting)
                at = deployment.one("SELECT clock_timestamp() AS at")["at"]
                # What comes now is lost, but workers and the outside know it.
                [claimed] = deployment.claim().claims
                lost_run = deployment.start(claimed)
                assert fire_schedules(deployment.dispatcher, SETTINGS) == 3
                assert lost_run is not None
                assert deployment.settle(open_run, Returned("sent a mail"))
                name = deployment.one("SELECT pg_walfile_name(pg_current_wal_lsn()) AS name")
            program(first, "psql", "--command=SELECT pg_switch_wal()", "overnight")
            wait_until((archive / name["name"]).exists, what="the archived WAL")

        second = restored_server(place, first, archive, at.isoformat())
        with second:
            monkeypatch.setenv("OVERNIGHT_DATABASE_URL", second.url())

            told = run("after-restore", "--json")

            assert told.exit_code == 0, told.output
            report = json.loads(told.stdout)
            assert [one["task_id"] for one in report["runs"]] == [show_task(open_run.claim.task_id)]
            assert report["waiting"] == 1
            [past] = report["schedules"]
            assert (past["schedule_id"], past["fire_times"]) == (show_schedule(schedule), 3)
            assert [one["trigger_id"] for one in report["triggers"]] == [show_trigger(trigger)]
            assert report["reports"] == 1
            with deployment_on(second.url()) as deployment:
                deployment.agent()
                assert not deployment.claim().claims  # paused, until a person has looked
                assert not deployment.settle(open_run, Returned("sent a mail"))
                assert not deployment.settle(lost_run, Returned("sent a mail"))
                # What ran since the instant does not run again.
                assert fire_schedules(deployment.dispatcher, SETTINGS) == 0
                assert [fire["status"] for fire in fires(deployment, schedule)] == [
                    "skipped_missed"
                ] * 3
                assert next_due(deployment, "schedules", "next_due_at")
                assert next_due(deployment, "report_times", "next_at")
                epochs = deployment.rows("SELECT id, epoch FROM tasks ORDER BY id")
                assert [row["epoch"] for row in epochs] == [1_001, 1_000]
                assert {row["id"] for row in epochs} == {open_run.claim.task_id, waiting}
                assert audit_all(deployment.dispatcher) == 0


def make_due(deployment: Deployment, user: UserId, task: TaskId) -> tuple[ScheduleId, TriggerId]:
    """Add a schedule with three due fire times, a due trigger and a due report time."""
    schedule = add(deployment, user, "every hour")
    deployment.run(
        "UPDATE schedules SET next_fire_at = next_fire_at - interval '3 hours',"
        " next_due_at = next_due_at - interval '3 hours', catch_up = 'all'"
    )
    graph = NewGraph([NewTask("report", "echo")])
    trigger = add_trigger(
        deployment.app, user, DagId(task), graph, LOOSE, actor=ME, when="finished"
    )
    deployment.run("UPDATE dag_triggers SET due_at = clock()")
    deployment.run(
        "INSERT INTO report_times (user_id, zone, at, next_at)"
        " VALUES (:user, 'UTC', '07:00', clock() - interval '1 hour')",
        user=user,
    )
    return schedule, trigger


def next_due(deployment: Deployment, table: str, column: str) -> bool:
    """Return whether the only row of a table is due later."""
    return bool(deployment.one(f"SELECT {column} > clock() AS later FROM {table}")["later"])


def test_fire_times_that_wait_are_not_run_again_either(database_url: str) -> None:
    with deployment_on(database_url) as deployment:
        deployment.agent()
        user = deployment.user()
        schedule = add(deployment, user, "every hour", overlap="queue")
        paused = add(deployment, user, "every hour", name="paused", paused=True)
        deployment.run(
            "UPDATE schedules SET next_fire_at = next_fire_at - interval '3 hours',"
            " next_due_at = next_due_at - interval '3 hours', catch_up = 'all'"
        )
        deployment.run(
            "UPDATE schedules SET next_due_at = clock() + interval '1 hour' WHERE id = :id",
            id=paused,
        )
        fire_schedules(deployment.dispatcher, SETTINGS)
        add_channel(deployment, user, "schedule.skipped")

        restored = after_restore(deployment.dispatcher, actor=ME)
        again = after_restore(deployment.dispatcher, actor=ME)

        assert [(one.name, one.fire_times) for one in restored.schedules] == [("nightly", 2)]
        assert [one["status"] for one in fires(deployment, schedule)] == [
            *("queued", "skipped_missed", "skipped_missed")
        ]
        assert "restored" in fires(deployment, schedule)[-1]["reason"]
        [told] = outbox(deployment)
        assert "may have run" in told["detail"]["reason"]
        assert (again.schedules, again.triggers, again.reports) == ([], [], 0)


def restored_server(
    place: Path, first: EmbeddedPostgres, archive: Path, until: str
) -> EmbeddedPostgres:
    """Return a second server on the base backup, to be recovered until an instant."""
    (place / "second").mkdir(mode=0o711)
    shutil.move(place / "copy", place / "second" / "postgres")
    (place / "second" / "postgres" / "recovery.signal").touch()
    copy_credentials(first, place / "second")
    second = EmbeddedPostgres(
        place / "second",
        settings={
            "archive_mode": "off",
            "restore_command": f"cp {archive}/%f %p",
            "recovery_target_time": until,
            "recovery_target_action": "promote",
            "hot_standby": "off",  # no connection before the end of the recovery
        },
    )
    give_to_server(second, place / "second" / "postgres")
    return second
