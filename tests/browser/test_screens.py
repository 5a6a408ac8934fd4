"""Every screen in Chromium, in both themes and two widths: clean, still and accessible."""

import pytest
from playwright.sync_api import Browser

from overnight_server.control.keys import issue
from overnight_server.dashboard.routes import screens
from overnight_server.domain.ids import show_dag
from tests.support.chromium import Opened, watch
from tests.support.live_api import LiveApi
from tests.support.night import Night

DESKTOP, PHONE = (1440, 900), (390, 844)


def paths(night: Night) -> list[str]:
    """Return an address of every page."""
    plain = [
        route.path
        for screen in screens()
        for route in screen.routes
        if route.method == "GET" and "{" not in route.path and route.path != "/tasks/selected"
    ]
    dag = show_dag(night.dag)
    return [
        *plain,
        f"/tasks/selected?act=cancel&id={night.id('waiting')}&id={night.id('port')}",
        "/tasks?q=state:dead+cst:1",
        *(f"/tasks/{night.id(name)}" for name in ("migrate", "port", "locked", "marked", "asks")),
        f"/tasks/{night.id('locked')}/edit",
        f"/tasks/{night.id('port')}/cancel",
        f"/graphs/{dag}",
        f"/graphs/{dag}?view=time",
        f"/graphs/{dag}/cancel",
        f"/locks/{night.id('port')}/release",
        f"/users/{night.user}",
    ]


# axe takes most of the time: a build asks it of a desktop, and a proof of all four.
@pytest.mark.parametrize(
    ("theme", "size", "axe"),
    [
        ("light", DESKTOP, True),
        ("dark", PHONE, False),
        pytest.param("dark", DESKTOP, True, marks=pytest.mark.proof),
        pytest.param("light", PHONE, True, marks=pytest.mark.proof),
        pytest.param("dark", PHONE, True, marks=pytest.mark.proof),
    ],
)
def test_every_screen_is_clean_still_and_accessible(  # noqa: PLR0917 - a table of cases
    chromium: Browser,
    served: LiveApi,
    night: Night,
    theme: str,
    size: tuple[int, int],
    axe: bool,  # noqa: FBT001 - a column of the table
) -> None:
    width, height = size
    with chromium.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if theme == "dark" else "light",
    ) as context:
        tab = watch(context, served.url)
        tab.sign_in(issue(night.deployment.app, night.user, name="laptop"))
        for path in paths(night):
            tab.open(path)
            tab.check(path)
            if axe:
                tab.check_accessibility(path)

    assert not tab.complaints, "\n".join(tab.complaints)


# Which share of the picture the bars have; whether the last column of the runs can be seen.
SHARE = """
document.querySelector(".fall .row > svg").getBoundingClientRect().width
  / document.querySelector(".fall").getBoundingClientRect().width
"""
LAST_COLUMN = """
() => {
  const box = document.querySelector("section[aria-labelledby=runs] .list");
  box.scrollTo(box.scrollWidth, 0);
  const cell = box.querySelector("td:last-child").getBoundingClientRect();
  return cell.width > 0 && cell.right <= box.getBoundingClientRect().right + 1;
}
"""


@pytest.mark.parametrize("width", [800, 1000, 1200, 1440])
def test_tables_and_pictures_have_room_at_every_width(
    opened: Opened, night: Night, width: int
) -> None:
    page = opened.page
    page.set_viewport_size({"width": width, "height": 900})

    opened.open(f"/tasks/{night.id('migrate')}")
    opened.check(f"a task at {width}")
    assert page.evaluate(SHARE) > 0.38
    assert page.evaluate(LAST_COLUMN)

    opened.open("/tasks")
    opened.check(f"the list at {width}")
    assert page.evaluate("document.querySelector('td.why').clientWidth") > 150
