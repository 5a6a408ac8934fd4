"""Sign in to the dashboard: sessions begin with a key, a token or a link, and end with them."""

import re
from collections.abc import Iterator
from datetime import timedelta

import pytest
from fastapi.testclient import TestClient

from overnight_server.control.keys import issue, key_id_of, revoke
from tests.support.browser import ORIGIN, Browser, serve_dashboard
from tests.support.deployment import Deployment


@pytest.fixture
def browser(deployment: Deployment, database_url: str) -> Iterator[Browser]:
    with serve_dashboard(database_url) as opened:
        yield opened


@pytest.fixture
def key(deployment: Deployment) -> str:
    return issue(deployment.app, deployment.user(), name="laptop")


def another(browser: Browser) -> Browser:
    """Return a second browser at the same dashboard."""
    return Browser(TestClient(browser.http.app, base_url=ORIGIN))


def make_link(browser: Browser, key: str) -> str:
    """Return the token of a sign-in link."""
    response = browser.http.post("/api/v1/users/me/sign-in-links", headers={"X-API-Key": key})
    assert response.status_code == 201, response.text
    path: str = response.json()["path"]
    return path.removeprefix("/sign-in/")


def is_signed_in(browser: Browser) -> bool:
    """Whether a page of a user is shown."""
    page = browser.open("/me")
    return "Sessions" in page.text


def test_a_page_leads_to_the_form_and_the_form_back_to_the_page(browser: Browser, key: str) -> None:
    response = browser.http.get("/me?a=1", headers={"Accept": "text/html"}, follow_redirects=False)
    form = browser.open(response.headers["location"]).form("/sign-in")
    signed_in = browser.send("/sign-in", {**form, "key": key})

    assert response.status_code == 303
    assert signed_in.headers["location"] == "/me?a=1"
    assert is_signed_in(browser)


def test_the_cookie_is_for_this_site_and_no_script(browser: Browser, key: str) -> None:
    cookie = browser.send("/sign-in", {"key": key}).headers["set-cookie"]

    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert key not in cookie


def test_https_gets_a_cookie_with_the_host_prefix(browser: Browser, key: str) -> None:
    secure = Browser(TestClient(browser.http.app, base_url="https://overnight.example"))
    cookie = secure.send("/sign-in", {"key": key}, Origin="https://overnight.example")

    assert cookie.headers["set-cookie"].startswith("__Host-overnight=")
    assert "Secure" in cookie.headers["set-cookie"]


def test_plain_http_from_another_machine_is_refused(browser: Browser, key: str) -> None:
    far = Browser(TestClient(browser.http.app, base_url="http://overnight.example"))

    refused = far.send("/sign-in", {"key": key}, Origin="http://overnight.example")

    assert refused.status_code == 403
    assert "set-cookie" not in refused.headers
    assert "HTTPS" in refused.text


@pytest.mark.parametrize("secret", ["", "nonsense", "overnight_live_x_y_z", "é", "x" * 20_000])
def test_every_failure_has_the_same_answer(browser: Browser, key: str, secret: str) -> None:
    wrong_check = browser.send("/sign-in", {"key": key[:-1] + "_"})

    other = browser.send("/sign-in", {"key": secret})

    assert other.status_code == wrong_check.status_code == 401
    assert other.text == wrong_check.text
    assert "set-cookie" not in other.headers


def test_attempts_to_sign_in_are_limited(browser: Browser, key: str) -> None:
    answers = [browser.send("/sign-in", {"key": "nonsense"}).status_code for _ in range(10)]

    refused = browser.send("/sign-in", {"key": key})

    assert set(answers) == {401}
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) > 0
    assert "set-cookie" not in refused.headers


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec_Fetch_Site": "cross-site", "Origin": "https://evil.example"},
        {"Sec_Fetch_Site": "same-site", "Origin": ORIGIN},
        {"Origin": "null"},
    ],
)
def test_no_other_site_can_sign_a_browser_in_or_act(
    browser: Browser, key: str, headers: dict[str, str]
) -> None:
    refused = browser.send("/sign-in", {"key": key}, **headers)
    browser.sign_in(key)
    fields = browser.open("/me").form("/look")

    act = browser.send("/look", {**fields, "theme": "dark"}, **headers)

    assert refused.status_code == act.status_code == 403
    assert "overnight_theme" not in act.headers.get("set-cookie", "")


def test_a_form_without_the_token_of_its_session_is_refused(
    browser: Browser, key: str, deployment: Deployment
) -> None:
    browser.sign_in(key)
    other = another(browser)
    other.sign_in(issue(deployment.app, deployment.user(), name="other"))
    theirs = other.open("/me").form("/look")

    without = browser.send("/look", {"theme": "dark"})
    with_another = browser.send("/look", {**theirs, "theme": "dark"})

    assert without.status_code == with_another.status_code == 403


@pytest.mark.parametrize(
    "back", ["//evil.example", "https://evil.example", "/\\evil", "javascript:x"]
)
def test_the_way_back_stays_on_this_site(browser: Browser, key: str, back: str) -> None:
    assert browser.send("/sign-in", {"key": key, "back": back}).headers["location"] == "/"


def test_revoking_the_key_ends_its_sessions(
    browser: Browser, key: str, deployment: Deployment
) -> None:
    browser.sign_in(key)

    revoke(deployment.app, key_id_of(key))

    assert "API key" in browser.open("/me").text


def test_disabling_the_user_ends_the_sessions(
    browser: Browser, key: str, deployment: Deployment
) -> None:
    browser.sign_in(key)

    deployment.run("UPDATE users SET disabled_at = clock()")

    assert not is_signed_in(browser)


def test_a_session_has_the_scopes_of_its_key(browser: Browser, deployment: Deployment) -> None:
    user = deployment.user()
    browser.send("/sign-in", {"key": issue(deployment.app, user, name="k", scopes=["keys:read"])})

    assert "lacks the scope tasks:read" in browser.open("/me", status=403).text


def test_a_session_is_listed_and_can_be_ended_from_another_browser(
    browser: Browser, key: str
) -> None:
    browser.sign_in(key)
    page = browser.open("/me")
    [mine] = [form["action"] for form in page.forms if form["action"].endswith("/end")]
    other = another(browser)
    other.sign_in(key)
    page = browser.open("/me")
    ends = [form["action"] for form in page.forms if form["action"].endswith("/end")]
    [theirs] = [end for end in ends if end != mine]

    browser.press(page, theirs)

    assert "ended" in browser.toast()
    assert is_signed_in(browser)
    assert not is_signed_in(other)


def test_nobody_ends_the_session_of_another_user(
    browser: Browser, key: str, deployment: Deployment
) -> None:
    browser.sign_in(key)
    other = another(browser)
    other.sign_in(issue(deployment.app, deployment.user(), name="other"))
    page = browser.open("/me")
    [mine] = [form["action"] for form in page.forms if form["action"].endswith("/end")]

    other.send(mine, other.open("/me").form("/look"))

    assert is_signed_in(browser)


def test_signing_out_ends_the_session_and_not_only_the_cookie(browser: Browser, key: str) -> None:
    page = browser.sign_in(key)
    cookie = browser.http.cookies["overnight"]

    browser.send("/sign-out", page.form("/sign-out"))
    browser.http.cookies.set("overnight", cookie, domain="localhost.local")

    assert not is_signed_in(browser)


def test_the_cookie_changes_every_hour_and_the_old_one_ends_with_the_first_use_of_the_new(
    browser: Browser, key: str, deployment: Deployment
) -> None:
    browser.sign_in(key)
    first = browser.http.cookies["overnight"]
    deployment.move_clock(timedelta(hours=1, seconds=1))

    # The response is lost: the browser still has the first cookie.
    browser.open("/me")
    second = browser.http.cookies["overnight"]
    lost = another(browser)
    lost.http.cookies.set("overnight", first, domain="localhost.local")
    assert is_signed_in(lost)
    deployment.move_clock(timedelta(minutes=2))
    assert is_signed_in(browser)

    late = another(browser)
    late.http.cookies.set("overnight", first, domain="localhost.local")
    assert second != first
    assert not is_signed_in(late)


@pytest.mark.parametrize("unused", [timedelta(days=7, seconds=1), timedelta(days=31)])
def test_a_session_ends_without_use(
    browser: Browser, key: str, deployment: Deployment, unused: timedelta
) -> None:
    browser.sign_in(key)

    deployment.move_clock(unused)

    assert not is_signed_in(browser)


def test_only_hashes_are_stored(browser: Browser, key: str, deployment: Deployment) -> None:
    browser.sign_in(key)
    cookie = browser.http.cookies["overnight"]

    assert cookie not in str(deployment.rows("SELECT * FROM sessions"))


def test_a_link_signs_in_once_and_only_when_its_form_is_sent(
    browser: Browser, key: str, deployment: Deployment
) -> None:
    link = make_link(browser, key)
    page = browser.open(f"/sign-in/{link}")
    browser.open(f"/sign-in/{link}")

    first = browser.send("/sign-in", page.form("/sign-in"))
    second = another(browser).send("/sign-in", page.form("/sign-in"))

    assert first.status_code == 303
    assert is_signed_in(browser)
    assert second.status_code == 401


@pytest.mark.parametrize("end", ["late", "revoked"])
def test_a_link_ends_after_ten_minutes_and_with_its_key(
    browser: Browser, key: str, deployment: Deployment, end: str
) -> None:
    link = make_link(browser, key)
    if end == "late":
        deployment.move_clock(timedelta(minutes=10, seconds=1))
    else:
        revoke(deployment.app, key_id_of(key))

    assert browser.send("/sign-in", {"link": link}).status_code == 401


def test_an_unopened_link_is_no_cookie(browser: Browser, key: str, deployment: Deployment) -> None:
    browser.http.cookies.set("overnight", make_link(browser, key), domain="localhost.local")

    assert not is_signed_in(browser)


def test_every_page_has_the_headers_and_unknown_pages_tell_nothing(
    browser: Browser, key: str
) -> None:
    signed_out = browser.http.get("/nowhere", headers={"Accept": "text/html"})
    assert "API key" in signed_out.text

    browser.sign_in(key)
    for path, status in (("/me", 200), ("/nowhere", 404), ("/static/0/overnight.css", 404)):
        response = browser.http.get(path, headers={"Accept": "text/html"})
        assert response.status_code == status
        if path != "/static/0/overnight.css":
            assert (
                "require-trusted-types-for 'script'" in response.headers["content-security-policy"]
            )
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["cache-control"] == "no-store"


def test_assets_are_kept_for_a_year_under_the_hash_of_their_content(
    browser: Browser, key: str
) -> None:
    page = browser.sign_in(key)
    paths = re.findall(r'(?:href|src)="(/static/[^"]+)"', page.source)

    assert len(paths) == 3
    for path in paths:
        response = browser.http.get(path)
        assert response.status_code == 200
        assert "immutable" in response.headers["cache-control"]
