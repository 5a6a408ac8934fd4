"""What a swap of a part leaves alone, and that no change is lost: typing, focus, lists, pauses."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import APIResponse, BrowserContext, Locator, Page, Route, expect

from overnight_server.control.cancel import cancel
from overnight_server.domain.ids import TaskId, show_task
from overnight_server.domain.results import Returned, StoppedByBudget
from tests.support.chromium import Opened, watch
from tests.support.graphs import begin
from tests.support.live_api import LiveApi
from tests.support.night import Night

PARTS = re.compile(r"/parts\?")
LIVE = re.compile(r"/live(\?|$)")
#: A list waits this long for a part that is asked for at most every five seconds.
PATIENT = 15_000


def open_live(opened: Opened, path: str) -> None:
    """Open a screen, and wait until the stream reaches it and its first refresh is over."""
    page = opened.page
    with page.expect_response(LIVE, timeout=PATIENT), page.expect_response(PARTS, timeout=PATIENT):
        opened.open(path)
    page.wait_for_timeout(700)


def asking(night: Night, title: str) -> TaskId:
    """Add a task that has used up its budget and asks for more."""
    task = night.deployment.task(night.user, title=title, type="translate", max_cost_usd=2.0)
    [run] = begin(night.deployment, task)
    night.deployment.settle(run, StoppedByBudget(cost_usd=2.0))
    return task


def form_of(amount: Locator) -> str:
    """Return the address of the form to which a field belongs now."""
    address: str = amount.evaluate("field => field.form.getAttribute('action')")
    return address


def under_pointer(page: Page, at: tuple[float, float]) -> str:
    """Return the address of the form that a click at a point would send."""
    find = "([x, y]) => document.elementFromPoint(x, y).closest('form').getAttribute('action')"
    address: str = page.evaluate(find, list(at))
    return address


def centre(target: Locator) -> tuple[float, float]:
    """Return the middle of an element."""
    box = target.bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def test_typed_money_stays_with_its_task(opened: Opened, page: Page, night: Night) -> None:
    # The one that asks longest comes first: whatever asks from now on comes before this task.
    night.deployment.run(
        "UPDATE tasks SET updated_at = clock() + interval '1 day' WHERE id = :id",
        id=night.tasks["asks"],
    )
    open_live(opened, "/approvals")
    amount = page.locator("li", has_text="Translate chapter 6").locator("input[name=usd]")
    amount.fill("25")
    address = f"/approvals/{night.id('asks')}/approve"
    assert form_of(amount) == address

    other = asking(night, "Translate chapter 9")

    bar = page.get_by_role("button", name="1 change, show (n)")
    expect(bar).to_be_visible()
    field = page.locator(":focus")
    expect(field).to_have_value("25")
    assert form_of(field) == address
    assert page.locator("input[name=usd]").count() == 1

    bar.click()
    titles = page.locator(".needs h2 a").all_inner_texts()
    assert titles == ["Translate chapter 9", "Translate chapter 6"]
    expect(amount).to_have_value("25")
    assert form_of(amount) == address
    first = page.locator("input[name=usd]").first
    expect(first).not_to_have_value("25")
    assert form_of(first) == f"/approvals/{show_task(other)}/approve"


def test_a_list_under_the_pointer_keeps_its_rows(opened: Opened, page: Page, night: Night) -> None:
    open_live(opened, "/queue")
    button = page.locator("tr", has_text="Label 400 feedback notes").get_by_role("button")
    at = centre(button)
    page.mouse.move(*at)
    titles = page.locator("tbody .title").all_inner_texts()
    act = f"/tasks/{night.id('waiting')}/cancel"
    assert under_pointer(page, at) == act

    night.deployment.task(night.user, title="Most urgent", type="code", priority=1)

    bar = page.get_by_role("button", name="1 change, show (n)")
    expect(bar).to_be_visible()
    assert under_pointer(page, at) == act
    assert page.locator("tbody .title").all_inner_texts() == titles
    assert page.evaluate("window.shifts") == 0
    page.keyboard.press("n")
    expect(page.locator("tbody")).to_contain_text("Most urgent")
    expect(bar).to_have_count(0)


def test_a_list_that_the_reader_has_left_is_brought_up_to_date(
    opened: Opened, page: Page, night: Night
) -> None:
    open_live(opened, "/queue")
    page.mouse.move(*centre(page.locator("tr", has_text="Label 400 feedback notes")))
    night.deployment.task(night.user, title="Most urgent", type="code", priority=1)
    expect(page.locator("[data-fresh]")).to_be_visible()
    expect(page.locator("tbody")).not_to_contain_text("Most urgent")

    page.mouse.move(2, 2)

    expect(page.locator("tbody")).to_contain_text("Most urgent")
    expect(page.locator("[data-fresh]")).to_be_hidden()


def test_the_focus_goes_to_what_replaces_a_form(opened: Opened, page: Page, night: Night) -> None:
    open_live(opened, "/queue")
    row = page.locator("tr", has_text="Review the whole change")
    row.get_by_role("button", name="Cancel").focus()

    begin(night.deployment, night.tasks["review"])

    expect(row.get_by_role("link", name="Cancel…")).to_be_focused()


def test_what_the_reader_has_closed_stays_closed(opened: Opened, page: Page, night: Night) -> None:
    open_live(opened, "/")
    result = page.locator(".results details").first
    result.locator("summary").click()
    page.mouse.move(2, 2)
    page.evaluate("document.activeElement.blur()")
    expect(result).not_to_have_attribute("open", "")
    before = page.locator(".tally").inner_text()

    cancel(night.deployment.app, night.user, night.tasks["waiting"], actor=f"user:{night.user}")

    expect(page.locator(".tally")).not_to_have_text(before, timeout=PATIENT)
    expect(page.locator(".tally")).to_contain_text("2 cancelled", timeout=PATIENT)
    expect(result).not_to_have_attribute("open", "")


def test_a_change_during_a_request_is_not_lost(opened: Opened, page: Page, night: Night) -> None:
    held: list[tuple[Route, APIResponse]] = []

    def hold_first(route: Route) -> None:
        if held:
            route.continue_()
        else:
            held.append((route, route.fetch()))

    page.route(PARTS, hold_first)
    with page.expect_response(LIVE, timeout=PATIENT):
        opened.open("/tasks")
    while not held:
        page.wait_for_timeout(50)
    page.wait_for_timeout(500)
    page.keyboard.press("p")
    begin(night.deployment, night.tasks["review"])
    expect(page.locator("#live")).to_contain_text("Paused ·")
    page.keyboard.press("p")
    page.wait_for_timeout(500)

    route, stale = held[0]
    route.fulfill(response=stale)

    row = page.locator("tr", has_text="Review the whole change")
    expect(row.locator(".st")).to_contain_text("running", timeout=4_000)


def test_a_tab_that_follows_catches_up_with_the_time_before_its_script(
    context: BrowserContext, opened: Opened, page: Page, served: LiveApi, night: Night
) -> None:
    open_live(opened, "/tasks")
    leading = page.locator("tr", has_text="Review the whole change").locator(".st")
    follower = watch(context, served.url)

    def change_first(route: Route) -> None:
        begin(night.deployment, night.tasks["review"])
        expect(leading).to_contain_text("running")
        route.continue_()

    follower.page.route("**/overnight.js", change_first)
    follower.open("/tasks")

    row = follower.page.locator("tr", has_text="Review the whole change")
    expect(row.locator(".st")).to_contain_text("running")
    assert follower.complaints == []


def test_only_tasks_that_the_search_selects_are_announced(
    opened: Opened, page: Page, night: Night
) -> None:
    open_live(opened, "/tasks?q=type:survey")
    waiting = page.locator("#pill\\:")
    before = waiting.inner_text()

    night.deployment.task(night.user, title="Not a survey", type="code")
    expect(waiting).not_to_have_text(before)
    page.wait_for_timeout(1_500)
    expect(page.locator("[data-fresh]")).to_be_hidden()
    night.deployment.task(night.user, title="A survey", type="survey")

    expect(page.get_by_role("button", name="1 new, show (n)")).to_be_visible()


def test_a_row_that_matches_no_more_stays_dimmed(opened: Opened, page: Page, night: Night) -> None:
    open_live(opened, "/tasks?tab=waiting")
    titles = page.locator("tbody .title").all_inner_texts()
    row = page.locator("tr", has_text="Review the whole change")

    [run] = begin(night.deployment, night.tasks["review"])
    expect(row.locator(".st")).to_contain_text("running")
    expect(row).to_have_class(re.compile("outside"))
    night.deployment.settle(run, Returned(summary="Nothing to complain about."))
    expect(row).to_contain_text("Nothing to complain about.")

    expect(row).to_have_class(re.compile("outside"))
    assert page.locator("tbody .title").all_inner_texts() == titles
    page.reload()
    expect(row).to_have_count(0)


def test_a_first_task_is_announced_on_an_empty_list(
    opened: Opened, page: Page, night: Night
) -> None:
    open_live(opened, "/tasks?q=type:nothing-yet")

    night.deployment.task(night.user, title="The first of its kind", type="nothing-yet")

    page.get_by_role("button", name="1 new, show (n)").click()
    expect(page.locator("tbody")).to_contain_text("The first of its kind")


def test_progress_of_a_running_task_appears_without_an_event(
    opened: Opened, page: Page, night: Night
) -> None:
    open_live(opened, "/tasks")
    progress = json.dumps({"percent": 80, "message": "reading the last files"})

    night.deployment.run(
        "UPDATE tasks SET progress = CAST(:progress AS jsonb) WHERE id = :id",
        progress=progress,
        id=night.tasks["port"],
    )

    expect(page.locator("tbody")).to_contain_text("reading the last files", timeout=PATIENT)


@contextmanager
def without_a_stream(page: Page) -> Iterator[None]:
    """Hold the stream back, as some proxies do: the request never gets an answer."""
    page.route(LIVE, lambda _route: None)
    yield
    page.unroute_all(behavior="ignoreErrors")


def test_without_a_stream_the_page_asks_every_five_seconds(
    opened: Opened, page: Page, night: Night
) -> None:
    with without_a_stream(page):
        opened.open("/tasks")
        expect(page.locator("#live")).to_contain_text("Every 5 s", timeout=PATIENT)

        begin(night.deployment, night.tasks["review"])

        row = page.locator("tr", has_text="Review the whole change")
        expect(row.locator(".st")).to_contain_text("running", timeout=PATIENT)


#: Chromium without windows shows every page, so the page is told that it is hidden.
TURN = """(state) => {
  const isHidden = state === "hidden";
  Object.defineProperty(document, "hidden", { configurable: true, get: () => isHidden });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


def test_a_hidden_page_asks_for_nothing_and_then_catches_up(
    opened: Opened, page: Page, night: Night
) -> None:
    page.clock.install()
    open_live(opened, "/tasks")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    row = page.locator("tr", has_text="Review the whole change")

    page.evaluate(TURN, "hidden")
    page.wait_for_timeout(1_500)
    asked.clear()
    begin(night.deployment, night.tasks["review"])
    page.clock.fast_forward(11_000)
    page.wait_for_timeout(1_000)
    assert asked == []
    expect(row.locator(".st")).to_contain_text("ready")
    page.evaluate(TURN, "visible")

    expect(row.locator(".st")).to_contain_text("running")
    assert any("/live" in url for url in asked), "the stream was not closed and opened again"


@pytest.mark.parametrize("path", ["/tasks", "/queue"])
def test_on_a_phone_search_clock_and_live_are_reachable(
    opened: Opened, page: Page, path: str
) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    opened.open(path)

    header = page.get_by_role("banner")
    for control in (
        header.get_by_role("textbox", name="Find tasks"),
        header.get_by_role("button", name="UTC").or_(header.get_by_role("button", name="Ago")),
        header.locator("#live"),
    ):
        expect(control.first).to_be_in_viewport(ratio=1)
    opened.check(path)
