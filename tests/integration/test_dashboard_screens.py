"""Every other screen of the dashboard: its answer, its acts as forms, and who may see it."""

import re
from datetime import timedelta
from urllib.parse import quote

from overnight_server.control.keys import issue
from overnight_server.dashboard.routes import screens
from overnight_server.domain.ids import show_bulk, show_dag, show_schedule
from tests.support.browser import Browser, Page
from tests.support.deployment import AGENT
from tests.support.night import MARKUP, Night


def group_of(browser: Browser) -> tuple[Page, str]:
    """Return the page of dead letters, and the address of its group."""
    page = browser.open("/dead")
    [address] = {
        link for link in page.links if link.startswith("/dead/") and "/" not in link[6:]
    } - {"/dead/decided"}
    return page, address


def test_graphs_are_listed_and_drawn(browser: Browser, night: Night) -> None:
    address = f"/graphs/{show_dag(night.dag)}"
    listed = browser.open("/graphs").text
    text = browser.open(address).text

    assert "Ship billing v2" in listed
    assert "2 of 6 tasks done. Port the payment webhooks runs. 3 tasks wait." in text
    assert "Deploy to staging: pending" in text
    assert "The longest chain 5 tasks" in text


def test_a_graph_has_three_views(browser: Browser, night: Night) -> None:
    address = f"/graphs/{show_dag(night.dag)}"
    views = {name: browser.open(f"{address}?view={name}") for name in ("graph", "list", "time")}

    drawn = {name: "Drawing of the graph" in page.source for name, page in views.items()}
    listed = {name: "Tasks of the graph" in page.text for name, page in views.items()}
    assert drawn == {"graph": True, "list": False, "time": False}
    assert listed == {"graph": True, "list": True, "time": False}
    time = views["time"]
    assert "When each task waited and worked" in time.text
    assert re.search('aria-label="Drop the old tables: waited [^"]*other tasks', time.source)
    [part] = [one for one in time.ids if one.startswith("graph:")]
    assert "When each task waited" in browser.http.get("/parts", params={"for": part}).text


def test_a_graph_is_cancelled_after_a_question_and_retried(browser: Browser, night: Night) -> None:
    address = f"/graphs/{show_dag(night.dag)}"
    page = browser.open(f"{address}/cancel")
    assert "1 task runs and would be asked to stop" in page.text

    page = browser.press(page, f"{address}/cancel")
    assert browser.toast() == "3 tasks cancelled. 1 running task asked to stop."
    browser.press(page, f"{address}/retry")

    assert browser.toast() == "3 tasks wait to run again."


def test_dead_letters_are_grouped_and_retried_together(browser: Browser, night: Night) -> None:
    page, address = group_of(browser)
    assert "2 dead letters, 1 cause." in page.text
    assert "2 tasks are longer than the model can read" in page.text
    assert "In common: type translate" in page.text

    browser.press(page, f"{address}/retry")

    assert browser.toast() == "2 tasks wait to run again."
    assert night.deployment.state(night.tasks["chapter 4"]) == "ready"


def test_dead_letters_are_closed_with_a_note(browser: Browser, night: Night) -> None:
    _, address = group_of(browser)
    page = browser.open(f"{address}/rest")

    browser.press(page, f"{address}/rest", note="the book is cancelled")

    assert browser.toast() == "2 dead letters closed."
    assert night.deployment.state(night.tasks["chapter 5"]) == "cancelled"
    assert "the book is cancelled" in browser.open("/dead/decided").text


def test_the_queue_tells_what_is_next_and_cancels(browser: Browser, night: Night) -> None:
    page = browser.open("/queue")
    assert "1 task runs, 8 tasks wait." in page.text

    browser.press(page, f"/tasks/{night.id('waiting')}/cancel")

    assert browser.toast() == "The task is cancelled."
    assert browser.last is not None
    assert browser.last.request.url.path == "/queue"


def test_work_is_paused_and_resumed(browser: Browser) -> None:
    page = browser.press(browser.open("/queue"), "/pause")
    assert "Your work is paused since" in page.text

    browser.press(page, "/resume")

    assert browser.toast() == "Tasks start again."


def test_the_forecast_is_a_page(browser: Browser) -> None:
    first = browser.open("/queue/forecast").text

    assert "The forecast is being computed." in first
    assert "tasks in the forecast" in browser.open("/queue/forecast").text
    part = browser.http.get("/parts", params={"for": "forecast:"}).text
    assert "tasks in the forecast" in part
    assert "data-every" not in part


def test_an_old_forecast_is_shown_until_a_newer_one_is_made(browser: Browser, night: Night) -> None:
    browser.open("/queue/forecast")
    young = browser.open("/queue/forecast")
    night.deployment.move_clock(timedelta(minutes=3))

    old = browser.open("/queue/forecast")
    new = browser.open("/queue/forecast")

    assert "data-every" not in young.source
    assert "data-every" in old.source
    assert "tasks in the forecast" in old.text
    assert "data-every" not in new.source


def test_money_is_allowed_and_the_task_goes_on(browser: Browser, night: Night) -> None:
    address = f"/approvals/{night.id('asks')}/approve"
    page = browser.open("/approvals")
    assert "If you do nothing, it waits, and nothing more is spent." in page.text

    browser.press(page, address, usd="many")
    assert browser.toast().endswith("is not an amount. Legal values: such as 1.50.") or (
        "is not an amount" in browser.toast()
    )
    browser.press(browser.open("/approvals"), address, usd="1.50")

    assert browser.toast() == "$1.50 more are allowed: 1 task goes on."
    assert night.deployment.state(night.tasks["asks"]) == "ready"


def test_an_operation_shows_its_progress_and_is_stopped(browser: Browser, night: Night) -> None:
    page = browser.open("/tasks/all?q=state:dead&act=retry")
    page = browser.press(page, "/tasks/all", act="retry")
    bulk = night.deployment.one("SELECT id FROM bulk_operations")["id"]
    address = f"/bulk/{show_bulk(bulk)}"
    assert "Retry 2 tasks" in page.text
    assert "0 of 2 processed" in page.text

    page = browser.press(page, f"{address}/stop")

    assert "cancelled" in page.text
    assert "Retry 2 tasks" in browser.open("/bulk").text


def test_limits_say_whether_more_can_be_queued(browser: Browser) -> None:
    text = browser.open("/limits").text

    assert "You can queue" in text
    assert "$4.04 of $12.00" in text
    assert "Translate chapter 6 , run 1" in text
    assert "Migrate the invoices table" in browser.open("/limits/ledger").text


def test_locks_name_holder_and_waiters_and_are_released(browser: Browser, night: Night) -> None:
    text = browser.open("/locks").text
    assert "1 lock is held, 1 task waits for it." in text
    assert "repo:billing Port the payment webhooks" in text
    address = f"/locks/{night.id('port')}/release"

    browser.press(browser.open(address), address)

    assert browser.toast() == "Released 1 lock."
    assert night.deployment.state(night.tasks["port"]) == "ready"


def test_workers_are_drained_and_everything_is_paused(browser: Browser, night: Night) -> None:
    page = browser.open("/workers")
    assert "1 worker, 1 of 4 slots busy." in page.text

    page = browser.press(page, f"/workers/{quote(AGENT)}/drain")
    assert browser.toast() == f"{AGENT} gets no new tasks."
    page = browser.press(page, f"/workers/{quote(AGENT)}/undrain")
    page = browser.press(page, "/workers/pause", pool="")

    assert "Everything is paused since" in page.text
    assert night.deployment.one("SELECT scope FROM pauses")["scope"] == "all"


def test_fairness_and_audit_are_for_admins(browser: Browser) -> None:
    assert "The report is being computed." in browser.open("/fairness").text
    assert "Ada" in browser.open("/fairness").text
    assert "Ada" in browser.http.get("/parts", params={"for": "fairness:24"}).text
    assert "task.cancelled" in browser.open("/audit?user=Ada&act=task").text
    assert "There is no user nobody" in browser.open("/audit?user=nobody").text


def test_the_audit_is_filtered_before_it_is_cut_into_pages(browser: Browser, night: Night) -> None:
    # All acts of one transaction have one instant.
    night.deployment.run(
        "INSERT INTO audit_log (actor, act, target, detail)"
        " SELECT 'human:ada', 'pool.paused', 'pool ' || n, '{}'"
        "   FROM generate_series(1, 450) n"
    )

    pages = [browser.open("/audit?act=pool.paused")]
    while older := [link for link in pages[-1].links if "before=" in link]:
        pages.append(browser.open(older[0]))

    assert "task.cancelled" in browser.open("/audit?act=task.c").text
    assert "No act matches." in browser.open("/audit?act=nothing").text
    assert "More than 200 acts" in pages[0].text
    shown = [re.findall(r"pool [0-9]+", page.text) for page in pages]
    assert [len(found) for found in shown] == [200, 200, 50]
    assert len(set().union(*shown)) == 450


def test_users_are_added_changed_and_disabled(browser: Browser, night: Night) -> None:
    page = browser.open("/users")

    page = browser.press(page, "/users/add", name="Grace", plan="pro")
    user = night.deployment.one("SELECT id FROM users WHERE name = 'Grace'")["id"]
    page = browser.press(page, f"/users/{user}/plan", plan="enterprise")
    assert "Plan enterprise" in page.text
    page = browser.press(page, f"/users/{user}/disable")

    assert "Disabled since" in page.text
    browser.press(browser.open("/users"), "/users/add", name="Grace", plan="pro")
    assert "is the name of another user" in browser.toast()


def test_a_key_is_shown_once_and_revoked(browser: Browser) -> None:
    page = browser.open("/keys")
    response = browser.send("/keys", {**page.form("/keys"), "name": "ci", "scope": "tasks:read"})
    assert response.status_code == 200
    key = next(word for word in Page(response.text).text.split() if word.startswith("overnight_"))
    assert key not in browser.open("/keys").source
    key_id = key.split("_")[2]

    page = browser.open(f"/keys/{key_id}/revoke")
    browser.press(page, f"/keys/{key_id}/revoke")

    answer = browser.http.get("/api/v1/users/me", headers={"X-API-Key": key})
    assert answer.status_code == 401


def test_the_window_is_set_and_removed(browser: Browser, night: Night) -> None:
    page = browser.open("/me")

    page = browser.press(
        page, "/me/window", opens="21:00", closes="05:00", zone="Europe/Berlin", at_closing="stop"
    )
    assert "21:00-05:00 Europe/Berlin" in page.text
    browser.press(page, "/me/window", zone="Nowhere/Else", remove="")
    assert "is no time zone" in browser.toast()
    browser.press(browser.open("/me"), "/me/window", remove="yes")

    assert night.deployment.one("SELECT window_zone FROM users WHERE name = 'Ada'") == {
        "window_zone": None
    }


def test_screens_of_admins_do_not_exist_for_others(browser: Browser, night: Night) -> None:
    browser.sign_in(issue(night.deployment.app, night.deployment.user(), name="theirs"))
    hidden = [
        route
        for screen in screens()
        for route in screen.routes
        if route.for_admins and "{" not in route.path
    ]
    fields = browser.open("/me").form("/look")

    for route in hidden:
        if route.method == "GET":
            browser.open(route.path, status=404)
        else:
            assert browser.send(route.path, fields).status_code == 404, route.path
    assert browser.send(f"/locks/{night.id('port')}/release", fields).status_code == 404
    assert browser.http.get("/parts", params={"for": "workers:"}).text == ""


def test_every_screen_has_something_to_say_to_a_new_user(browser: Browser, night: Night) -> None:
    browser.sign_in(issue(night.deployment.app, night.deployment.user(), name="theirs"))

    for screen in screens():
        for route in screen.routes:
            is_plain = "{" not in route.path and route.path != "/tasks/selected"
            if route.method == "GET" and is_plain and not route.for_admins:
                page = browser.open(route.path)
                assert MARKUP not in page.text, route.path


def test_a_schedule_is_made_run_paused_changed_and_deleted(browser: Browser, night: Night) -> None:
    page = browser.open("/schedules")
    fields = {**page.form("/schedules"), "name": "nightly", "title": "Report", "when": "sometimes"}
    wrong = browser.send("/schedules", fields)
    assert wrong.status_code == 422
    assert "nightly" in wrong.text

    page = browser.press(
        page, "/schedules", name="nightly", title="Report", when="every day at 22:00", zone="UTC"
    )
    assert "It is active; next" in page.text
    [row] = night.deployment.rows("SELECT id FROM schedules")
    way = f"/schedules/{show_schedule(row['id'])}"
    page = browser.press(page, f"{way}/run")
    assert "not over yet" in page.text
    page = browser.press(page, f"{way}/pause")
    assert "It is paused" in page.text
    page = browser.press(page, f"{way}/edit", when="every hour")
    assert browser.toast() == "The schedule is changed."
    browser.press(browser.open(f"{way}/delete"), f"{way}/delete")

    assert "Nothing comes by itself." in browser.open("/schedules").text


def test_a_channel_is_added_disabled_and_removed(browser: Browser) -> None:
    page = browser.open("/notifications")
    fields = {
        **page.form("/notifications"),
        "name": "ops",
        "kind": "webhook",
        "address": "http://127.0.0.1:9/hook",
        "kinds": "task.dead_lettered",
    }
    wrong = browser.send("/notifications", {**fields, "address": "nowhere"})
    assert wrong.status_code == 422
    added = browser.send("/notifications", fields)
    assert added.status_code == 200, added.text[-2000:]
    assert "cannot be shown again" in added.text

    page = browser.press(browser.open("/notifications"), "/notifications/ops/test")
    assert browser.toast().startswith("A test message is on its way")
    page = browser.press(page, "/notifications/ops/enable", enabled="")
    assert "disabled" in page.text
    assert "test" in browser.open("/notifications/deliveries").text
    page = browser.open("/notifications/ops/remove")
    browser.press(page, "/notifications/ops/remove")

    assert "Nobody is told anything." in browser.open("/notifications").text


def test_the_home_page_tells_the_night(browser: Browser, night: Night) -> None:
    page = browser.open("/")
    [before] = {link for link in page.links if link.startswith("/nights/")}

    assert "2 failed, 1 running, 8 waiting" in page.text
    assert "“Translate chapter 6” asks for money" in page.text
    assert "If you do nothing:" in page.text
    assert "Port the payment webhooks" in page.text
    assert "in 4 slots" in page.source or "Slot 1" in page.text
    assert "The night before" in browser.open(before).text
    browser.open("/nights/2031-01-01", status=404)
    browser.open("/nights/yesterday", status=404)
    assert "is being computed, and appears here" in browser.open("/evening").text
    assert "should be done by" in browser.open("/evening").text
