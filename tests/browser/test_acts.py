"""Acts by clicking, changes that appear by themselves, keys, and pages without script."""

from playwright.sync_api import Browser, BrowserContext, Page, expect

from overnight_server.domain.ids import show_dag, show_task
from overnight_server.domain.results import Returned
from tests.support.chromium import Opened, watch
from tests.support.graphs import begin
from tests.support.live_api import LiveApi
from tests.support.night import MARKUP, Night


def press(page: Page, name: str) -> None:
    """Click a button or a link of the page itself."""
    main = page.locator("main")
    main.get_by_role("button", name=name).or_(main.get_by_role("link", name=name)).first.click()


def says(page: Page, text: str) -> None:
    """Expect what the toast says."""
    expect(page.locator("#toast")).to_contain_text(text)


def test_tasks_are_cancelled_retried_edited_and_paid_by_clicking(
    opened: Opened, page: Page, night: Night
) -> None:
    opened.open(f"/tasks/{night.id('locked')}")
    press(page, "Cancel")
    says(page, "The task is cancelled.")
    page.locator("#toast").get_by_role("button", name="Undo").click()
    says(page, "The task waits to run again.")
    assert night.deployment.state(night.tasks["locked"]) == "ready"

    opened.open(f"/tasks/{night.id('chapter 4')}")
    press(page, "Edit and retry…")
    page.fill("#f-payload", '{"model": "larger"}')
    press(page, "Save and retry")
    says(page, "The task was changed and waits to run again.")
    assert night.deployment.row(night.tasks["chapter 4"])["payload"] == {"model": "larger"}

    opened.open("/dead")
    press(page, "Retry 1 task")
    says(page, "1 task waits to run again.")

    opened.open("/approvals")
    press(page, "Allow that much more")
    says(page, "$1.00 more are allowed")

    opened.open(f"/tasks/{night.id('port')}")
    press(page, "Cancel…")
    press(page, "Cancel this task")
    says(page, "The task was asked to stop.")


def test_selected_tasks_an_operation_and_a_pause_by_clicking(
    opened: Opened, page: Page, night: Night
) -> None:
    opened.open("/tasks")
    for name in ("waiting", "locked"):
        page.locator(f"input[value='{night.id(name)}']").check()
    page.locator(".bulk").get_by_role("button", name="Cancel 2…").click()
    press(page, "Cancel 2 tasks")
    says(page, "2 tasks cancelled.")

    opened.open("/tasks/all?q=state:dead&act=retry")
    press(page, "Retry 2 tasks")
    says(page, "The operation has started.")
    press(page, "Stop")
    says(page, "The operation is stopped.")

    opened.open("/queue")
    press(page, "Pause my work")
    expect(page.locator("main")).to_contain_text("Your work is paused since")
    press(page, "Resume my work")
    says(page, "Tasks start again.")

    opened.open(f"/graphs/{show_dag(night.dag)}")
    press(page, "Cancel…")
    press(page, "Cancel 4 tasks")
    says(page, "3 tasks cancelled.")


def test_a_change_appears_without_a_reload_and_rows_keep_their_places(
    opened: Opened, page: Page, night: Night
) -> None:
    opened.open("/tasks")
    expect(page.locator("#live")).to_contain_text("Live")
    page.evaluate("window.loadedOnce = true")
    titles = page.locator("tbody .title").all_inner_texts()
    row = page.locator("tr", has_text="Review the whole change")
    row.locator("input").check()

    [run] = begin(night.deployment, night.tasks["review"])
    expect(row.locator(".st")).to_contain_text("running")
    night.deployment.settle(run, Returned(summary="Nothing to complain about."))

    expect(row).to_contain_text("Nothing to complain about.")
    expect(row.locator("input")).to_be_checked()
    new = night.deployment.task(night.user, title="A task of the morning")
    expect(page.locator("[data-fresh]")).to_have_text("1 new, show (n)")
    assert page.locator("tbody .title").all_inner_texts() == titles
    assert page.evaluate("window.loadedOnce")
    page.keyboard.press("n")
    expect(page.locator(f"input[value='{show_task(new)}']")).to_be_visible()


def test_a_paused_page_says_how_many_changes_wait(opened: Opened, page: Page, night: Night) -> None:
    opened.open("/tasks")
    pill = page.locator("#live")
    expect(pill).to_contain_text("Live")
    page.keyboard.press("p")
    expect(pill).to_contain_text("Paused")

    [run] = begin(night.deployment, night.tasks["review"])
    expect(pill).to_contain_text("Paused ·")
    row = page.locator("tr", has_text="Review the whole change")
    expect(row.locator(".st")).to_contain_text("ready")
    page.keyboard.press("p")

    expect(row.locator(".st")).to_contain_text("running")
    assert run.claim.task_id == night.tasks["review"]


def test_the_eighth_tab_works(
    context: BrowserContext, opened: Opened, served: LiveApi, night: Night
) -> None:
    tabs = [watch(context, served.url) for _ in range(7)]

    for tab in tabs:
        tab.open("/tasks")
    [run] = begin(night.deployment, night.tasks["review"])

    for tab in (opened, *tabs):
        if tab is opened:
            continue
        row = tab.page.locator("tr", has_text="Review the whole change")
        expect(row.locator(".st")).to_contain_text("running")
        assert tab.complaints == []
    assert run.claim.task_id == night.tasks["review"]


def test_keys_move_select_and_open(opened: Opened, page: Page) -> None:
    opened.open("/tasks")

    for key in ("j", "j", "x", "k"):
        page.keyboard.press(key)
    expect(page.locator("tr.at")).to_contain_text("Label 400 feedback notes")
    expect(page.locator(".bulk b")).to_have_text("1")
    page.keyboard.press("Escape")
    expect(page.locator(".bulk")).to_have_class("bulk idle")
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    expect(page.locator("#query")).to_be_focused()
    page.keyboard.type("jx")
    expect(page.locator("#query")).to_have_value("jx")
    page.keyboard.press("Enter")
    page.wait_for_url("**/tasks?q=jx")


def test_script_in_titles_payloads_and_errors_stays_text(
    opened: Opened, page: Page, night: Night
) -> None:
    opened.open(f"/tasks/{night.id('marked')}")

    expect(page.locator("h1")).to_contain_text(MARKUP)
    expect(page.locator("main")).to_contain_text("onerror=alert(1)")
    assert page.locator("main img, main script").count() == 0


def test_without_script_pages_show_the_facts_and_acts_work(
    chromium: Browser, served: LiveApi, night: Night, key: str
) -> None:
    with chromium.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(f"{served.url}/sign-in")
        page.fill("#key", key)
        page.click("button.main")
        page.goto(f"{served.url}/tasks")
        text = page.locator("main").inner_text()
        assert "65 % · reading 61 changed files" in text
        assert "Copy as command" not in text

        page.locator(f"input[value='{night.id('waiting')}']").check()
        page.locator(".bulk").get_by_role("button", name="Cancel…").click()
        press(page, "Cancel 1 task")

        expect(page.locator("#toast")).to_contain_text("1 task cancelled.")
    assert night.deployment.state(night.tasks["waiting"]) == "cancelled"
