"""Alert rules and the Grafana dashboard: they name what exists, and every alert fires."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import yaml
from sqlalchemy import text

from overnight.models.notifications import ChannelChange
from overnight_server.api.http.exposition import expose
from overnight_server.control.agents import PullAgentDescription, register
from overnight_server.control.keys import Caller
from overnight_server.control.notification_channels import Ways, change, remove
from overnight_server.domain.ids import UserId
from overnight_server.domain.results import Lost, Raised
from overnight_server.insight.metrics import METRICS
from overnight_server.maintenance.queue_metrics import count_new_events
from overnight_server.outcome.presence import WorkerDescription, join
from overnight_server.settings import load
from overnight_server.store.db import APP, ActingUser, Db
from tests.support.deployment import POOL, Deployment
from tests.support.exposition import problems
from tests.support.metrics import Scrape
from tests.support.metrics import parse as parse_metrics
from tests.support.notifications import add_channel
from tests.support.promql import evaluate, parse

FOLDER = Path(__file__).parents[2] / "docs/operations"
RULES: dict[str, dict[str, Any]] = {
    rule["alert"]: rule
    for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
}
DASHBOARD = json.loads((FOLDER / "grafana-dashboard.json").read_text())
SWEEPS = ("reap", "promote", "timeouts", "metrics")
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


class Watched:
    """A deployment whose metrics are scraped, in which tests break something."""

    def __init__(self, deployment: Deployment, api: Db, stack: ExitStack) -> None:
        self.deployment, self.api, self.stack = deployment, api, stack
        self.home = Path("/tmp")
        self.user = deployment.user()
        self.run_sweeps()

    def run_sweeps(self) -> None:
        """Record a pass of each sweep that alerts watch."""
        for name in SWEEPS:
            self.deployment.run(
                "INSERT INTO sweeps (name, started_at, finished_at)"
                " VALUES (:name, clock(), clock())"
                " ON CONFLICT (name) DO UPDATE SET finished_at = clock()",
                name=name,
            )

    def wait(self, by: timedelta) -> None:
        """Let time pass while sweeps run and workers send heartbeats."""
        self.deployment.move_clock(by)
        self.run_sweeps()
        self.deployment.run("UPDATE agents SET last_heartbeat_at = clock()")

    def text(self) -> str:
        """Return the text of a scrape."""
        settings = load({"OVERNIGHT_HOME": str(self.home)})
        return expose(self.api, settings).decode()

    def scrape(self) -> Scrape:
        """Count all events and scrape."""
        count_new_events(self.deployment.dispatcher)
        return parse_metrics(self.text())


@pytest.fixture
def watched(deployment: Deployment, connect: Callable[..., Db]) -> Iterator[Watched]:
    with ExitStack() as stack:
        yield Watched(deployment, connect("api", role=APP), stack)


def stop_reaper(it: Watched) -> None:
    it.deployment.move_clock(2 * MINUTE)


def forget_reaper(it: Watched) -> None:
    it.deployment.run("DELETE FROM sweeps WHERE name = 'reap'")


def stop_promoter(it: Watched) -> None:
    it.deployment.move_clock(11 * MINUTE)


def leave_an_expired_lease(it: Watched) -> None:
    it.deployment.agent()
    it.deployment.running(it.user)
    it.wait(3 * MINUTE)


def submit_without_workers(it: Watched) -> None:
    it.deployment.task(it.user)


def let_a_task_wait(it: Watched) -> None:
    it.deployment.task(it.user)
    it.wait(61 * MINUTE)


def leave_a_slot_free(it: Watched) -> None:
    it.deployment.agent()
    it.deployment.task(it.user)
    it.wait(2 * MINUTE)


def leave_a_claim_unstarted(it: Watched) -> None:
    it.deployment.agent()
    it.deployment.task(it.user)
    it.deployment.claim()
    it.wait(2 * MINUTE)


def freeze_an_agent(it: Watched) -> None:
    caller = Caller(it.user, "", ())
    register(it.deployment.dispatcher, caller, PullAgentDescription("laptop"))
    it.deployment.move_clock(2 * MINUTE)
    it.run_sweeps()


def end_quiet_hours(it: Watched) -> None:
    now = it.deployment.one("SELECT clock() AT TIME ZONE 'UTC' AS now")["now"]
    hours = {"quiet_from": now - HOUR, "quiet_to": now + HOUR, "quiet_zone": "UTC"}
    add_delivery(it, **{name: _time(value) for name, value in hours.items()})
    it.wait(HOUR + 11 * MINUTE)


def freeze_a_worker(it: Watched) -> None:
    it.deployment.agent()
    it.deployment.move_clock(MINUTE)
    it.run_sweeps()


def lose_runs(it: Watched) -> None:
    it.deployment.agent()
    for _ in range(4):
        it.deployment.settle(it.deployment.running(it.user), Lost())


def fail_runs(it: Watched) -> None:
    it.deployment.agent()
    it.deployment.settle(it.deployment.running(it.user), Raised("error", "no"))


def take_the_sandbox_away(it: Watched) -> None:
    it.deployment.agent()
    it.deployment.settle(it.deployment.running(it.user), Raised("no_sandbox", "no"))


def use_up_a_budget(it: Watched) -> None:
    join(it.deployment.dispatcher, WorkerDescription("paid:1:a", POOL, (), 1, budget_usd=0))


def add_delivery(it: Watched, user: UserId | None = None, **columns: Any) -> UUID:
    """Add a channel with these columns, and a delivery that is due; return the channel."""
    owner = user or it.user
    channel = add_channel(it.deployment, owner, "task.dead_lettered", **columns)
    with it.deployment.owner.engine.begin() as tx:
        tx.execute(
            text(
                "SELECT record_notification(:user, 'task.dead_lettered', gen_random_uuid()::text,"
                " NULL, NULL, '{}')"
            ),
            {"user": owner},
        )
    return channel


def stop_the_notifier(it: Watched) -> None:
    add_delivery(it)
    it.wait(11 * MINUTE)


def give_up_a_delivery(it: Watched) -> None:
    add_delivery(it)
    it.deployment.run("UPDATE notification_deliveries SET state = 'dead', ended_at = clock()")


def fill_the_disk(it: Watched) -> None:
    # A file system without a free byte.
    it.home = Path("/proc") if Path("/proc/self").exists() else Path("/dev")


def keep_a_snapshot_open(it: Watched) -> None:
    old = it.stack.enter_context(it.deployment.owner.engine.connect())
    old = old.execution_options(isolation_level="REPEATABLE READ")
    old.execute(text("SELECT count(*) FROM tasks"))
    with it.deployment.owner.engine.connect() as other:
        # One transaction after the other takes an id.
        other.execution_options(isolation_level="AUTOCOMMIT").execute(
            text(
                "DO $$ BEGIN FOR n IN 1..500001 LOOP"
                " PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$"
            )
        )


BREAKS: list[tuple[str, Callable[[Watched], None]]] = [
    ("OvernightNoReaper", stop_reaper),
    ("OvernightNoReaper", forget_reaper),
    ("OvernightSweepLate", stop_promoter),
    ("OvernightLeasePastDue", leave_an_expired_lease),
    ("OvernightNoWorkers", submit_without_workers),
    ("OvernightQueueAge", let_a_task_wait),
    ("OvernightDispatchLag", leave_a_slot_free),
    ("OvernightClaimNotStarted", leave_a_claim_unstarted),
    ("OvernightAgentSilent", freeze_a_worker),
    ("OvernightAgentSilent", freeze_an_agent),
    ("OvernightRunsLost", lose_runs),
    ("OvernightManyFailures", fail_runs),
    ("OvernightNoSandbox", take_the_sandbox_away),
    ("OvernightBudgetUsedUp", use_up_a_budget),
    ("OvernightDeliveriesLate", stop_the_notifier),
    ("OvernightDeliveriesLate", end_quiet_hours),
    ("OvernightDeliveriesDead", give_up_a_delivery),
    ("OvernightDiskFull", fill_the_disk),
    ("OvernightOldSnapshot", keep_a_snapshot_open),
]


@pytest.mark.parametrize(("alert", "break_it"), BREAKS)
def test_the_alert_fires_when_the_thing_is_broken_and_not_before(
    watched: Watched, alert: str, break_it: Callable[[Watched], None]
) -> None:
    expression = RULES[alert]["expr"]
    before = watched.scrape()
    assert evaluate(expression, before, before) == {}

    break_it(watched)

    assert evaluate(expression, watched.scrape(), before), expression


def hold_deliveries_back(it: Watched) -> None:
    """Let deliveries wait because users or receivers want it, or end because users want it."""
    run, caller = it.deployment.run, Caller(it.user, "", ())
    own = it.api.acting_for(ActingUser(it.user))
    now = it.deployment.one("SELECT clock() AT TIME ZONE 'UTC' AS now")["now"]
    hours = {"quiet_from": now - HOUR, "quiet_to": now + HOUR, "quiet_zone": "UTC"}
    add_delivery(it, name="quiet", **{name: _time(value) for name, value in hours.items()})
    asked = add_delivery(it, name="asked-to-wait")
    run(
        "UPDATE notification_channels SET blocked_until = clock() + interval '1 hour'"
        " WHERE id = :id",
        id=asked,
    )
    add_delivery(it, name="removed")
    remove(own, caller, "removed")
    add_delivery(it, name="disabled")
    change(own, caller, "disabled", ChannelChange(enabled=False), Ways())
    disabled = it.deployment.user()
    add_delivery(it, disabled)
    run("UPDATE users SET disabled_at = clock() WHERE id = :id", id=disabled)
    old = add_delivery(it, name="given-up-before")
    run(
        "UPDATE notification_deliveries SET state = 'dead', error = 'no answer',"
        " ended_at = clock() - interval '2 hours' WHERE channel_id = :id",
        id=old,
    )


def _time(value: Any) -> Any:
    return value.time() if isinstance(value, datetime) else value


def test_no_alert_fires_in_a_deployment_that_works(watched: Watched) -> None:
    hold_deliveries_back(watched)
    watched.wait(11 * MINUTE)
    watched.deployment.agent()
    caller = Caller(watched.user, "", ())
    agent = register(watched.deployment.dispatcher, caller, PullAgentDescription("laptop"))
    # It sends a heartbeat every 30 seconds.
    watched.deployment.run(
        "UPDATE agents SET last_heartbeat_at = clock() - interval '40 seconds' WHERE id = :id",
        id=agent.agent_id,
    )
    add_delivery(watched, name="due")
    before = watched.scrape()
    run = watched.deployment.running(watched.user)
    watched.deployment.settle(run, Raised("error", "no", retryable=True))
    watched.deployment.settle(watched.deployment.running(watched.user), Raised("error", "no"))
    watched.deployment.running(watched.user)

    now = watched.scrape()

    fired = {name for name, rule in RULES.items() if evaluate(rule["expr"], now, before)}
    assert fired == {"OvernightManyFailures"}


def test_the_alert_for_missing_metrics_fires_without_an_answer(watched: Watched) -> None:
    expression = RULES["OvernightNoMetrics"]["expr"]

    assert evaluate(expression, Scrape([], {}))
    assert not evaluate(expression, watched.scrape())


def test_every_alert_is_broken_by_a_test() -> None:
    assert {alert for alert, _ in BREAKS} | {"OvernightNoMetrics"} == set(RULES)


@pytest.mark.parametrize("alert", RULES)
def test_a_rule_has_what_prometheus_needs_and_names_what_exists(alert: str) -> None:
    rule = RULES[alert]

    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in {"page", "warn"}
    assert re.fullmatch(r"\d+[smh]", rule.get("for", "0m"))
    assert rule["annotations"]["summary"].endswith(".")
    templates = re.findall(r"\{\{ \$labels\.(\w+) \}\}", rule["annotations"]["summary"])
    known = _check_names(rule["expr"])
    assert set(templates) <= known


@pytest.mark.parametrize("panel", DASHBOARD["panels"], ids=lambda panel: panel["title"])
def test_a_panel_of_the_dashboard_names_what_exists(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        known = _check_names(target["expr"])
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= known


def test_the_dashboard_shows_every_metric() -> None:
    expressions = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]

    shown = {name for expression in expressions for name, _ in parse(expression).selected}

    assert shown == set(METRICS)


def test_the_text_of_a_scrape_has_the_syntax_of_prometheus(watched: Watched) -> None:
    watched.deployment.agent()
    run = watched.deployment.running(watched.user, type='a"b\\c\nd')
    watched.deployment.settle(run, Raised("error", "no"))
    watched.scrape()

    assert list(problems(watched.text())) == []
    assert list(problems('# HELP a b\n# TYPE a gauge\na{x="1"} 1\na{x="1"} 2\nb 1')) != []


def test_the_page_says_what_to_do_for_every_alert() -> None:
    page = (FOLDER / "metrics.md").read_text()

    assert re.findall(r"^\| `(Overnight\w+)` \|", page, re.MULTILINE) == list(RULES)


def _check_names(expression: str) -> set[str]:
    """Check that an expression names metrics with their labels; return the labels it leaves."""
    parsed = parse(expression)
    assert parsed.selected
    for name, labels in parsed.selected:
        assert labels <= set(METRICS[name].labels), f"{name} has no {labels}"
    if "sum" in expression:
        return set(parsed.grouped)
    return {label for name, _ in parsed.selected for label in METRICS[name].labels}
