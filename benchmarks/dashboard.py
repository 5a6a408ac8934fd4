"""How long each page of the dashboard takes at 1M tasks, a tenth of them of one user.

The pages are asked for one after the other, as the user with the tenth, of a real API process. A
page that a screen has with parameters is opened for one of that user's tasks, graphs or groups.
"""

import http.client
import re
import socket
from collections.abc import Mapping, Sequence
from urllib.parse import urlencode
from uuid import UUID

from benchmarks.deployment import BenchmarkDeployment, fresh_deployment
from benchmarks.history_rows import fill_history
from benchmarks.http_callers import call_api
from benchmarks.options import Options
from benchmarks.results import BenchmarkResult, percentile
from benchmarks.servers import BenchmarkServers
from benchmarks.wait import wait_until
from overnight.models.bulk import TaskFilter
from overnight.models.schedules import ScheduleCreate
from overnight_server.control.bulk import BulkOrder, start
from overnight_server.control.keys import issue, key_id_of
from overnight_server.control.schedules import add_schedule
from overnight_server.dashboard.cookies import LOOPBACK_NAME
from overnight_server.dashboard.routes import screens
from overnight_server.domain.bulk import Action
from overnight_server.domain.ids import UserId, show_bulk, show_dag, show_schedule, show_task
from overnight_server.insight.dead_letters import group_dead_letters
from overnight_server.local.ports import free_port
from overnight_server.outcome.presence import WorkerDescription, join

US = "overnight"
LARGEST_USER = UserId(UUID(int=0))
CALLS, WARM_UP = 50, 3
SHARE = 0.95
SLOWEST = "slowest page, p95, ms"
#: Searches that match many tasks, few or none; each is a page of its own.
SEARCHES: Sequence[Mapping[str, str]] = (
    *({"tab": tab} for tab in ("waiting", "active", "done", "dead", "cancelled")),
    *(
        {"q": text}
        for text in (
            "translate",
            "word in no title",
            "error:rare",
            "tag:rare",
            "tag:none",
            "cost:>1",
            "type:other",
            "lock:repo:none",
            "waits:approval",
            "ended:today",
        )
    ),
)
CHANNEL = """
    INSERT INTO notification_channels
           (id, user_id, name, kind, address, full_address, secret, private_allowed, subscribed)
    VALUES (gen_random_uuid(), :user, 'bench', 'webhook', 'http://127.0.0.1:9/', 'http://127.0.0.1:9/',
            'whsec_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0', true, '{task.completed}')
"""
#: The newest task that runs holds a lock.
LOCK = (
    "UPDATE tasks SET locks = '{repo:bench}' WHERE id = :task",
    "INSERT INTO held_locks (user_id, key, task_id) VALUES (:user, 'repo:bench', :task)",
)
NEWEST = "SELECT id FROM tasks WHERE user_id = :user AND state = :state ORDER BY id DESC LIMIT 1"


class NotSignedIn(Exception):
    """The API gave no session to the key of the benchmark."""


def measure(options: Options, servers: BenchmarkServers) -> BenchmarkResult:
    """Open every page again and again; no worker runs meanwhile."""
    tasks = options.choose(2_000, options.jobs or 1_000_000)
    users = options.choose(20, 10_000)
    calls = options.choose(3, CALLS)
    port = free_port()
    # Nobody is to be held back by the limit on requests.
    changes = {"rate_limit_per_second": "0", **options.settings, "api_port": str(port)}
    times: dict[str, list[float]] = {}
    with fresh_deployment(servers, changes) as deployment:
        fill_history(deployment, users=users, tasks=tasks)
        deployment.run("UPDATE users SET is_admin = true WHERE id = :user", user=LARGEST_USER)
        key = issue(deployment.app, LARGEST_USER, name="bench")
        paths = _paths(deployment, key)
        join(deployment.dispatcher, WorkerDescription("bench", "default", (), 100))
        with deployment.processes("api"):
            wait_until(lambda: _listens(port), what="the API", pause=0.1)
            cookie = _sign_in(port, key)
            for name, path in paths.items():
                with servers.watch(name):
                    waits = _open(port, cookie, path, calls)
                times[name] = [percentile(waits, SHARE)]
                print(f"  {name:<36} p95 {times[name][0]:.0f} ms", flush=True)
    result = BenchmarkResult()
    for name, values in times.items():
        result.figure(US, f"{name}, p95", "ms", values, "less")
    result.ratios[SLOWEST] = max(values[0] for values in times.values())
    return result


def _paths(deployment: BenchmarkDeployment, key: str) -> dict[str, str]:
    """Return an address of each page by the name under which it is reported."""
    values = _values(deployment, key)
    found = {}
    for route in (route for screen in screens() for route in screen.routes):
        if route.method != "GET":
            continue
        path = re.sub(r"{(\w+)}", lambda match: values[match[1]], route.path)
        found[route.path] = path
    task = values["task_id"]
    found["/tasks/selected"] = f"/tasks/selected?act=cancel&id={task}"
    found |= {
        f"/tasks?{'&'.join(f'{name}={text}' for name, text in query.items())}": (
            f"/tasks?{urlencode(query)}"
        )
        for query in SEARCHES
    }
    running = _newest(deployment, "running")
    for sql in LOCK:
        deployment.run(sql, user=LARGEST_USER, task=running)
    found["/locks/{task_id}/release"] = f"/locks/{show_task(running)}/release"
    older = show_task(_newest(deployment, "completed"))
    found["/tasks, older"] = f"/tasks?before={older}"
    for state in ("completed", "dead_lettered", "running"):
        found[f"/tasks/{{task_id}}, {state}"] = f"/tasks/{show_task(_newest(deployment, state))}"
    found["/fairness, a week"] = "/fairness?hours=168"
    return found


def _values(deployment: BenchmarkDeployment, key: str) -> dict[str, str]:
    """Return what stands for each parameter of an address."""
    db, user, actor = deployment.app, LARGEST_USER, f"user:{LARGEST_USER}"
    deployment.run(CHANNEL, user=user)
    schedule = ScheduleCreate(name="nightly", when="every day at 22:00", task={"title": "report"})
    order = BulkOrder(Action.CANCEL, TaskFilter(type="code"))
    graph = deployment.one(
        "SELECT id FROM dags WHERE user_id = :user ORDER BY id DESC LIMIT 1", user=user
    )
    yesterday = deployment.one("SELECT (clock() - interval '1 day')::date AS day")
    [group, *_] = group_dead_letters(db, user_id=user)
    return {
        "task_id": show_task(_newest(deployment, "ready")),
        "dag_id": show_dag(graph["id"]),
        "fingerprint": group.fingerprint,
        "day": str(yesterday["day"]),
        "key_id": key_id_of(key),
        "user_id": str(user),
        "name": "bench",
        "schedule_id": show_schedule(
            add_schedule(db, user, schedule, deployment.settings, actor=actor)
        ),
        "bulk_id": show_bulk(start(db, user, order, actor=actor).bulk_id),
    }


def _newest(deployment: BenchmarkDeployment, state: str) -> UUID:
    return UUID(str(deployment.one(NEWEST, user=LARGEST_USER, state=state)["id"]))


def _listens(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


def _sign_in(port: int, key: str) -> str:
    """Return the cookie of a new session."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    form = urlencode({"key": key, "back": "/"})
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Sec-Fetch-Site": "same-origin"}
    connection.request("POST", "/sign-in", form, headers)
    response = connection.getresponse()
    response.read()
    connection.close()
    cookies = [text.partition(";")[0] for text in response.headers.get_all("Set-Cookie") or ()]
    session = [cookie for cookie in cookies if cookie.startswith(f"{LOOPBACK_NAME}=")]
    if not session:
        raise NotSignedIn(response.status)
    return session[0]


def _open(port: int, cookie: str, path: str, calls: int) -> Sequence[float]:
    """Return how many milliseconds a page took each time."""
    head = [f"GET {path} HTTP/1.1", "Host: 127.0.0.1", "Accept: text/html"]
    head += ["Accept-Encoding: gzip", f"Cookie: {cookie}"]
    request = "\r\n".join([*head, "", ""]).encode()
    call_api([request], port, calls=WARM_UP)
    return call_api([request], port, calls=calls).milliseconds
