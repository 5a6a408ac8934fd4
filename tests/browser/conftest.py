"""A real Chromium, and a dashboard with the tasks of one night for it."""

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from overnight_server.control.keys import issue
from tests.support.chromium import FLAGS, Opened, watch
from tests.support.live_api import LiveApi, serve
from tests.support.night import Night

CHROMIUM = shutil.which("chromium")
MISSING = "Chromium is not installed, so the dashboard is not tested in a browser: scripts/chromium"


def pytest_report_header() -> list[str]:
    """Say before the tests that those in a browser do not run."""
    return [] if CHROMIUM else [f"browser: {MISSING}"]


def pytest_ignore_collect() -> bool | None:
    """Collect nothing here without Chromium."""
    return None if CHROMIUM else True


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One Chromium for the tests of a file.

    Not for the session: Playwright has an event loop in this thread until it ends, so that later
    tests of other files could not run one.
    """
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def served(night: Night, night_url: str) -> Iterator[LiveApi]:
    """The night's dashboard on a port of this machine."""
    with serve(night.deployment, night_url) as live:
        yield live


@pytest.fixture
def key(night: Night) -> str:
    """A key of the night's user."""
    return issue(night.deployment.app, night.user, name="laptop")


@pytest.fixture
def context(chromium: Browser) -> Iterator[BrowserContext]:
    """A new browser profile of a desktop in the light."""
    with chromium.new_context(
        viewport={"width": 1440, "height": 900}, color_scheme="light"
    ) as opened:
        yield opened


@pytest.fixture
def opened(context: BrowserContext, served: LiveApi, key: str) -> Iterator[Opened]:
    """A tab that is signed in; what it complains about fails the test."""
    tab = watch(context, served.url)
    tab.sign_in(key)
    yield tab
    assert tab.complaints == []


@pytest.fixture
def page(opened: Opened) -> Page:
    """The tab of `opened`."""
    return opened.page
