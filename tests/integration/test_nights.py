"""Nights and morning reports: slots that add up, honest words, the same figures everywhere."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from html import unescape
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner

from overnight.errors import NightNotFound
from overnight.models.nights import NightReport, UserNight
from overnight_server.cli.main import app
from overnight_server.control.keys import issue
from overnight_server.control.pauses import PauseSubject, pause, resume
from overnight_server.domain.ids import TaskId, UserId, show_task
from overnight_server.domain.night_picture import night_picture
from overnight_server.domain.reasons import format_duration
from overnight_server.domain.report_mail import render_report_mail
from overnight_server.domain.report_text import (
    describe_idle,
    money,
    report_markdown,
    report_text,
)
from overnight_server.domain.results import Raised, Returned, RunEnd
from overnight_server.insight.night import night
from overnight_server.insight.report import night_report
from overnight_server.insight.task_life import task_life
from tests.support.api_user import ApiUser
from tests.support.browser import Browser, serve_dashboard
from tests.support.deployment import LIVENESS, Deployment

pytestmark = pytest.mark.usefixtures("template")

DAY = date(2026, 11, 16)
OPENS = datetime(2026, 11, 16, 22, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
HARMFUL = "<script>alert(1)</script>\x1b[2J"


@dataclass
class Stage:
    """A deployment with one user whose night is from ten to six, and a clock."""

    deployment: Deployment
    user: UserId
    runs: dict[TaskId, Any]

    def at(self, minute: float) -> None:
        """Stop the clock at a minute after the window opens, and let the gate look."""
        self.deployment.set_clock(OPENS + minute * MINUTE)
        for claimed in self.deployment.claim().claims:
            self.runs[claimed.claim.task_id] = self.deployment.start(claimed)

    def task(self, **fields: Any) -> TaskId:
        """Submit a task."""
        return self.deployment.task(self.user, **{"timeout_seconds": 3600, **fields})

    def end(self, task: TaskId, result: RunEnd) -> None:
        """End the run of a task."""
        assert self.deployment.settle(self.runs.pop(task), result)  # type: ignore[arg-type]

    def night(self) -> UserNight:
        """Return the night after checking that it adds up."""
        shown = night(self.deployment.app, self.user, DAY, liveness=LIVENESS)
        assert_adds_up(shown)
        return shown

    def report(self) -> NightReport:
        """Return the report."""
        return night_report(self.deployment.app, self.user, DAY, liveness=LIVENESS)


@pytest.fixture
def pages(stage: Stage, database_url: str) -> Iterator[Browser]:
    """The dashboard of the user."""
    with serve_dashboard(database_url) as opened:
        opened.sign_in(issue(stage.deployment.app, stage.user, name="laptop"))
        yield opened


@pytest.fixture
def stage(deployment: Deployment) -> Stage:
    deployment.set_clock(OPENS - 60 * MINUTE)
    user = deployment.user(
        max_concurrent_agents=2, window_zone="UTC", window_from="22:00", window_to="06:00"
    )
    deployment.agent()
    deployment.claim()
    return Stage(deployment, user, {})


def assert_adds_up(shown: UserNight) -> None:
    """Check M3: work and idle time are the plan's slots times the open window."""
    assert shown.work_seconds + shown.idle_seconds == pytest.approx(shown.plan_seconds, abs=1e-3)
    pieces = [piece for slot in shown.slots for piece in slot.pieces]
    assert sum(piece.seconds for piece in pieces) == pytest.approx(shown.plan_seconds, abs=1e-3)
    assert all(piece.code for piece in pieces if piece.is_idle)
    for slot in shown.slots:
        assert all(
            one.until == other.since
            for one, other in zip(slot.pieces, slot.pieces[1:], strict=False)
        )


def test_work_and_idle_time_are_the_slots_times_the_window(stage: Stage) -> None:
    first, second = stage.task(title="the first"), stage.task(title="the second")
    stage.at(0)
    stage.at(60)
    stage.end(first, Returned())
    stage.at(120)
    stage.end(second, Raised("error", "no luck", retryable=False))
    stage.at(480)

    shown = stage.night()

    assert (shown.opens_at, shown.closes_at) == (OPENS, OPENS + 480 * MINUTE)
    assert shown.is_over
    assert shown.plan_seconds == 2 * 480 * 60
    assert shown.work_seconds == 180 * 60
    assert [(total.code, round(total.seconds / 60)) for total in shown.idle_by_cause] == [
        ("nothing_queued", 780)
    ]
    assert (shown.tally.total, shown.tally.done, shown.tally.dead) == (2, 1, 1)
    ran = {piece.title: piece.code for slot in shown.slots for piece in slot.pieces if piece.title}
    assert ran == {"the first": "completed", "the second": "failed"}


def test_an_empty_slot_has_the_cause_of_the_task_that_was_nearest_to_its_start(
    stage: Stage,
) -> None:
    holder = stage.task(locks=("repo:web",))
    stage.task(locks=("repo:web",))
    stage.at(0)
    pause(stage.deployment.dispatcher, PauseSubject(stage.user), actor="test")
    stage.at(60)
    stage.end(holder, Returned())
    stage.at(120)
    resume(stage.deployment.dispatcher, PauseSubject(stage.user), actor="test")
    stage.at(120)
    stage.at(180)

    shown = stage.night()

    idle = {total.code: round(total.seconds / 60) for total in shown.idle_by_cause}
    assert idle == {"lock": 60, "paused": 60, "nothing_queued": 120}
    assert [marker.kind for marker in shown.markers] == ["paused", "resumed"]
    counts = {code for count in shown.waiting for code in count.by_code}
    assert counts == {"lock", "paused"}


def test_a_night_that_has_not_begun_is_refused(stage: Stage) -> None:
    with pytest.raises(NightNotFound):
        night(stage.deployment.app, stage.user, DAY + timedelta(days=1), liveness=LIVENESS)


def test_a_user_without_a_window_has_days_as_nights(stage: Stage) -> None:
    stage.at(30)
    user = stage.deployment.user()

    shown = night(stage.deployment.app, user, liveness=LIVENESS)

    assert (shown.date, shown.has_window) == (DAY, False)
    assert shown.closes_at - shown.opens_at == timedelta(days=1)


def test_page_mail_text_and_json_carry_the_same_figures(stage: Stage, pages: Browser) -> None:
    """M7: every figure of the model is in every rendering, written alike."""
    done = stage.task(title="Read the papers")
    failed = stage.task(title=HARMFUL)
    stage.at(0)
    # Times that are written differently if one rendering rounds and another one cuts.
    stage.at(75.8)
    stage.end(done, Returned(summary="Seven papers.", cost_usd=1.25))
    stage.end(failed, Raised("error", HARMFUL, cost_usd=0.004, retryable=False))
    waiting = stage.task(title="Wait for hours", timeout_seconds=3600)
    pause(stage.deployment.dispatcher, PauseSubject(stage.user), actor="test")
    stage.at(490)

    report = stage.report()
    subject, text, html = render_report_mail(report, "https://overnight.example/")
    markdown = report_markdown(report)
    page = pages.open("/").text

    assert report.headline == (
        "1 of 3 done, 1 failed, 1 not finished: starts were paused for 6 h 44, and one thing needs"
        " you."
    )
    assert report.mood == "bad"
    assert (subject + ".", text) == (report.headline, report_text(report))
    plain = unescape(html)
    assert report.summary == "Worked 2 h 32 in 2 slots, $1.25 tonight, 2.0 hours this month."
    for rendering in (text, plain, markdown.replace("\\", ""), page):
        shown = rendering.replace("\xa0", " ").replace("&nbsp;", " ")
        assert report.headline in shown
        assert report.summary in shown
        for figure in ("1 done", "1 dead", "1 waiting", "Read the papers", "Seven papers."):
            assert figure in shown
        # The page begins a sentence with it.
        assert describe_idle(report.night)[1:] in shown
        assert money(1.25) in shown
        assert report.needs[0].if_ignored in shown
        assert report.needs[0].title.partition("\x1b")[0] in shown
        assert report.postponed[0].text in shown
        assert "\x1b" not in shown
    for task in report.groups[0].tasks:
        for rendering in (plain, page):
            assert format_duration(task.work_seconds) in rendering
    assert f"{format_duration(report.figures.work_seconds)} in this night" in page
    assert "<script" not in html
    assert "\\<script\\>" in markdown
    assert "style=" in html
    assert "src=" not in html
    [group] = report.groups
    assert (group.title, group.done, group.total) == ("Single tasks", 1, 3)
    assert [task.id for task in report.postponed] == [show_task(waiting)]
    assert NightReport.model_validate_json(report.model_dump_json()) == report
    ET.fromstring(night_picture(report.night))


def test_a_past_night_tells_what_was_true_at_its_end(stage: Stage, pages: Browser) -> None:
    early = stage.task(title="Read the papers")
    stage.at(0)
    stage.at(60)
    stage.end(early, Returned())
    pause(stage.deployment.dispatcher, PauseSubject(stage.user), actor="test")
    held = stage.task(title="Wait for hours")
    stage.at(70)
    waiting = stage.report().postponed
    stage.at(490)
    stage.at(24 * 60 + 30)
    resume(stage.deployment.dispatcher, PauseSubject(stage.user), actor="test")
    stage.at(24 * 60 + 30)
    stage.at(24 * 60 + 40)
    # It fails in the night after, and needs somebody now.
    stage.end(held, Raised("error", "no luck", retryable=False))

    report = stage.report()
    page = pages.open("/nights/2026-11-16")

    assert [task.id for task in waiting] == [show_task(held)]
    [postponed] = report.postponed
    assert (postponed.state, postponed.code) == ("ready", "window")
    assert report.night.is_past
    assert report.headline == "1 of 2 done, 1 not finished: starts were paused for 7 h."
    assert (report.needs, report.needs_more) == ([], 0)
    assert report.summary == "Worked 1 h in 2 slots, for $0.00."
    assert "Needs you now" in page.text
    assert "This night is past." in page.text
    assert "Hours this month" not in page.text
    latest = night_report(stage.deployment.app, stage.user, liveness=LIVENESS)
    assert len(latest.needs) == 1


def test_the_tally_leads_to_the_tasks_that_it_counts(stage: Stage, pages: Browser) -> None:
    first = stage.task(title="first night")
    stage.at(0)
    stage.at(10)
    stage.end(first, Returned())
    second = stage.task(title="second night")
    stage.at(24 * 60)
    stage.at(24 * 60 + 10)
    stage.end(second, Returned())

    for address, own, other in (
        ("/nights/2026-11-16", "first night", "second night"),
        ("/", "second night", "first night"),
    ):
        page = pages.open(address)
        [link] = [one for one in page.links if "tab=done" in one]
        listed = pages.open(link)
        assert own in listed.text
        assert other not in listed.text
        assert "Not understood" not in listed.text


def test_the_home_page_is_about_the_coming_night_before_it_opens(
    stage: Stage, pages: Browser
) -> None:
    stage.task(title="Read the papers")
    stage.at(-50)
    stage.deployment.agent()

    first = pages.open("/").text
    second = pages.open("/")

    assert "1 task waits for the night." in first
    assert "is being computed, and appears here" in first
    assert "1 of 1 should be done by tomorrow, 06:00." in second.text
    assert "Read the papers" in second.text
    assert "the last night" in second.text
    assert [link for link in second.links if link.startswith("/nights/")] == ["/nights/2026-11-15"]
    part = pages.http.get("/parts", params={"for": "evening:"})
    assert "should be done by" in part.text


def test_the_home_page_says_at_night_what_comes_next(stage: Stage, pages: Browser) -> None:
    for number in range(4):
        stage.task(title=f"task {number}")
    stage.at(30)

    text = pages.open("/").text

    assert text.index("What comes next") < text.index("task 2") < text.index("task 3")
    coming = text[text.index("What comes next") : text.index("Results")]
    assert "task 1" not in coming


def test_a_life_in_the_night_is_the_same_as_alone(stage: Stage) -> None:
    task = stage.task()
    stage.at(0)
    stage.at(10)
    stage.end(task, Returned())

    life = task_life(stage.deployment.app, stage.user, task, liveness=LIVENESS)

    assert [(segment.code, round(segment.seconds / 60)) for segment in life.segments] == [
        ("window", 60),
        ("state", 10),
    ]


def test_the_commands_draw_the_night_and_print_the_report(
    admin_cli: ApiUser, deployment: Deployment
) -> None:
    admin_cli.created(title="the report")
    run = CliRunner().invoke

    drawn, text = run(app, ["night"]), run(app, ["report"])
    markdown, document = run(app, ["report", "--md"]), run(app, ["report", "--json"])
    picture = admin_cli.request("GET", "/api/v1/nights/latest/picture")
    wrong = admin_cli.request("GET", "/api/v1/nights/yesterday")
    refused = run(app, ["night", "yesterday"])

    assert drawn.exit_code == 0, drawn.output
    assert "slot 1" in drawn.stdout
    assert "no worker" in drawn.stdout
    assert text.stdout.splitlines()[2].startswith("Still going: 0 of 1 done")
    assert markdown.stdout.startswith("# Still going")
    assert json.loads(document.stdout)["night"]["tally"]["waiting"] == 1
    assert picture.headers["content-type"].startswith("image/svg+xml")
    assert "such as 2026-11-16" in json.dumps(wrong.json())
    assert (wrong.status_code, refused.exit_code) == (404, 2)
