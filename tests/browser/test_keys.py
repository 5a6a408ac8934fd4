"""The table of keys: each key that it lists works, and no other key does anything."""

import re

import pytest
from playwright.sync_api import BrowserContext, expect

from overnight_server.domain.ids import show_dag
from tests.support.chromium import Opened
from tests.support.night import Night

FIRST, SECOND = "Label 400 feedback notes", "Regenerate the API client"


@pytest.fixture(autouse=True)
def clipboard(context: BrowserContext) -> None:
    """Let pages copy."""
    context.grant_permissions(["clipboard-read", "clipboard-write"])


@pytest.fixture
def keyboard(opened: Opened, night: Night) -> "Keyboard":
    """A tab whose keys are tried."""
    return Keyboard(opened, night)


class Keyboard:
    """Tries keys; one method for each line of the table."""

    def __init__(self, opened: Opened, night: Night) -> None:
        self.opened, self.page, self.night = opened, opened.page, night

    def press(self, *keys: str) -> None:
        """Press keys one after the other."""
        for key in keys:
            self.page.keyboard.press(key)

    def open(self, path: str, *keys: str) -> None:
        """Open a page and press keys."""
        self.opened.open(path)
        # The scripts of live changes come last.
        expect(self.page.locator("#live")).to_contain_text("Live")
        self.press(*keys)

    def leads(self, to: str) -> None:
        """Expect an address."""
        expect(self.page).to_have_url(re.compile(re.escape(to) + "$"))

    def says(self, text: str) -> None:
        """Expect what the toast says."""
        expect(self.page.locator("#toast")).to_contain_text(text)

    @property
    def copied(self) -> str:
        """The text of the clipboard."""
        text: str = self.page.evaluate("navigator.clipboard.readText()")
        return text

    def find(self) -> None:
        self.open("/tasks", "/")
        expect(self.page.locator("#query")).to_be_focused()
        self.open("/queue", "/")
        expect(self.page.locator("#q")).to_be_focused()

    def move(self) -> None:
        self.open("/tasks", "j")
        expect(self.page.locator("tr.at")).to_contain_text(FIRST)
        self.press("j")
        expect(self.page.locator("tr.at")).to_contain_text(SECOND)
        self.press("k")
        expect(self.page.locator("tr.at")).to_contain_text(FIRST)

    def enter(self) -> None:
        self.open("/tasks", "j", "Enter")
        self.leads(f"/tasks/{self.night.id('waiting')}")

    def select(self) -> None:
        self.open("/tasks", "j", "x")
        expect(self.page.locator(".bulk b")).to_have_text("1")

    def select_up_to(self) -> None:
        self.open("/tasks", "j", "x", "j", "j", "Shift+X")
        expect(self.page.locator(".bulk b")).to_have_text("3")
        self.press("Shift+X")
        expect(self.page.locator(".bulk b")).to_have_text("3")

    def retry(self) -> None:
        address = (
            f"/tasks/selected?back=%2Ftasks%3Ftab%3Ddead&act=retry&id={self.night.id('chapter 5')}"
        )
        self.open("/tasks?tab=dead", "r")
        self.says("No row is chosen")
        self.press("j", "r")
        self.leads(address)
        self.open("/tasks?tab=dead", "j", "x", "j", "x", "r")
        expect(self.page.locator("h1")).to_contain_text("Retry 2 tasks?")
        self.open("/tasks", "j", "r")
        self.says("This act does not fit the task as it is now.")
        self.open(f"/tasks/{self.night.id('chapter 4')}", "r")
        self.says("The task waits to run again.")

    def cancel(self) -> None:
        self.open("/tasks", "j", "c")
        expect(self.page.locator("h1")).to_contain_text("Cancel 1 task?")
        expect(self.page.locator("main")).to_contain_text(FIRST)
        self.open("/queue", "c")
        self.says("No row is chosen")
        row = self.page.locator("tr", has_text="Review the whole change")
        row.locator("a.title").focus()
        self.press("c")
        self.says("The task is cancelled.")
        assert self.night.deployment.state(self.night.tasks["review"]) == "cancelled"
        self.open(f"/graphs/{show_dag(self.night.dag)}", "c")
        self.leads("/cancel")
        self.open(f"/graphs/{show_dag(self.night.dag)}", "j", "c")
        self.says("This row has no such act.")

    def edit(self) -> None:
        for path in ("/tasks", "/queue"):
            self.open(path)
            self.page.locator("tr", has_text=SECOND).locator("a.title").focus()
            self.press("e")
            self.leads(f"/tasks/{self.night.id('locked')}/edit")
        self.open(f"/tasks/{self.night.id('locked')}", "e")
        self.leads(f"/tasks/{self.night.id('locked')}/edit")

    def why(self) -> None:
        self.open("/tasks", "j", "j", "w")
        cell = self.page.locator("tr.at td.why")
        expect(cell.locator(".reasons")).to_contain_text("A lock")
        expect(cell.locator(".reasons")).to_contain_text("repo:billing")
        self.press("w")
        expect(cell.locator(".reasons")).to_have_count(0)
        self.open("/queue", "j", "w")
        expect(self.page.locator("tr.at td.why .because")).to_be_visible()
        self.press("Escape")
        expect(self.page.locator(".because")).to_have_count(0)
        self.open(f"/tasks/{self.night.id('locked')}", "w")
        expect(self.page.locator(".say")).to_be_focused()

    def copy_id(self) -> None:
        for path in ("/tasks", "/queue"):
            self.open(path)
            self.page.locator("tr", has_text=FIRST).locator("a.title").focus()
            self.press("y")
            self.says(f"Copied: {self.night.id('waiting')}")
            assert self.copied == self.night.id("waiting")
        self.open(f"/tasks/{self.night.id('locked')}", "y")
        self.says(f"Copied: {self.night.id('locked')}")

    def copy_command(self) -> None:
        self.open("/tasks?q=type:code", "Shift+Y")
        self.says("Copied: overnight list --type code")
        self.open(f"/tasks/{self.night.id('locked')}", "Shift+Y")
        self.says("Copied: overnight get")

    def show_new(self) -> None:
        self.open("/tasks")
        self.page.wait_for_timeout(500)
        self.night.deployment.task(self.night.user, title="Newer than the page")
        expect(self.page.locator("[data-fresh]")).to_be_visible()
        self.press("n")
        expect(self.page.locator("tbody")).to_contain_text("Newer than the page")

    def tabs(self) -> None:
        for number, tab in enumerate(("", "waiting", "active", "done", "dead", "cancelled"), 1):
            self.open("/tasks?q=chapter", str(number))
            self.leads(f"/tasks?q=chapter&tab={tab}" if tab else "/tasks?q=chapter")

    def nights(self) -> None:
        self.open("/", "[")
        expect(self.page).to_have_url(re.compile("/nights/"))
        before = self.page.url
        self.press("[")
        expect(self.page).not_to_have_url(before)
        self.press("]")
        expect(self.page).to_have_url(before)

    def pause(self) -> None:
        self.open("/tasks", "p")
        expect(self.page.locator("#live")).to_contain_text("Paused")

    def clock(self) -> None:
        self.open("/tasks", "t")
        expect(self.page.locator(".clockmode [aria-pressed=true]")).to_have_text("Ago")

    def go(self) -> None:
        for letter, path in PLACES.items():
            self.open("/me", "g", letter)
            self.leads(path)

    def escape(self) -> None:
        self.open("/tasks", "j", "x", "Escape")
        expect(self.page.locator(".bulk")).to_have_class("bulk idle")
        self.press("?", "Escape")
        expect(self.page.locator("#keys")).to_be_hidden()

    def help(self) -> None:
        self.open("/tasks", "?")
        expect(self.page.locator("#keys")).to_be_visible()


PLACES = {"m": "/", "t": "/tasks", "q": "/queue", "d": "/dead", "l": "/limits", "w": "/workers"}
#: The lines of the table, and what tries them.
LINES = {
    "/": Keyboard.find,
    "j k": Keyboard.move,
    "Enter": Keyboard.enter,
    "x": Keyboard.select,
    "Shift+x": Keyboard.select_up_to,
    "r": Keyboard.retry,
    "c": Keyboard.cancel,
    "e": Keyboard.edit,
    "w": Keyboard.why,
    "y": Keyboard.copy_id,
    "Y": Keyboard.copy_command,
    "n": Keyboard.show_new,
    "1 … 6": Keyboard.tabs,
    "[ ]": Keyboard.nights,
    "p": Keyboard.pause,
    "t": Keyboard.clock,
    **{f"g {letter}": Keyboard.go for letter in PLACES},
    "Esc": Keyboard.escape,
    "?": Keyboard.help,
}


def test_each_listed_key_works_and_each_that_works_is_listed(keyboard: Keyboard) -> None:
    keyboard.open("/tasks", "?")
    lines: list[str] = keyboard.page.locator(".keymap > div").evaluate_all(
        "all => all.map(one => [...one.querySelectorAll('kbd')].map(k => k.textContent).join(' '))"
    )
    assert lines == list(LINES)

    for try_keys in dict.fromkeys(LINES.values()):
        try_keys(keyboard)


def test_other_keys_do_nothing(keyboard: Keyboard) -> None:
    keyboard.open("/tasks")
    known = {key for line in LINES for key in line.split()} | set("123456X") | {"Escape"}
    others = [chr(code) for code in range(33, 127) if chr(code) not in known]

    taken = keyboard.page.evaluate(
        """(keys) => keys.filter((key) => !document.body.dispatchEvent(
             new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true })))""",
        others,
    )

    assert taken == []
    assert "g" in known
    assert len(others) > 50


def test_keys_can_be_switched_off(context: BrowserContext, keyboard: Keyboard) -> None:
    context.add_cookies([{"name": "overnight_keys", "value": "off", "url": keyboard.opened.url}])
    keyboard.open("/tasks", "j", "?")

    expect(keyboard.page.locator("tr.at")).to_have_count(0)
    expect(keyboard.page.locator("#keys")).to_be_hidden()
