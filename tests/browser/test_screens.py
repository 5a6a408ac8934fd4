"""Every screen in Chromium, in both themes and two widths: clean, still and accessible."""

import pytest
from playwright.sync_api import Browser

from overnight_server.control.keys import issue
from overnight_server.dashboard.routes import screens
from overnight_server.domain.ids import show_dag
from tests.support.chromium import watch
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
