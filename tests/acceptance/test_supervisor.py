"""A real supervisor with small real services: order, restarts, exits, no process left behind."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.support.wait import wait_until

PROJECT = Path(__file__).parents[2]
DEPLOYMENT = """
    import json, sys
    from pathlib import Path
    from overnight_server.local.console import Console
    from overnight_server.local.guarded_program import Program
    from overnight_server.local.service_state import Service
    from overnight_server.local.supervisor import Supervisor

    from overnight_server.telemetry import configure

    place, orders = Path(sys.argv[1]), json.loads(sys.argv[2])

    def service(name, code, grace=10.0, needs=(), waits=False, shown=True):
        ready = (place / f"{name}.ready").exists if waits else None
        program = Program([sys.executable, "-c", code, name, str(place)], grace=grace)
        return Service(name, program, ready=ready, depends_on=tuple(needs), shown=shown)

    console = Console(sys.stdout)
    with Supervisor(place, console) as supervisor:
        configure("logfmt", "info", "supervisor", stream=supervisor.log)
        supervisor.shows_output = True
        if orders.get("once"):
            code = supervisor.run_once(service(**orders["once"]))
            supervisor.report(f"once: {code}")
        supervisor.add(service(**order) for order in orders["services"])
        supervisor.report("ready" if supervisor.run_until_ready(60) else "gave up")
        supervisor.run()
    console.message("all stopped")
    console.close()
"""
NORMAL = """
    import os, signal, sys, time
    from pathlib import Path
    name, place = sys.argv[1], Path(sys.argv[2])
    def record(text):
        with open(place / "lifecycle", "a") as lifecycle:
            lifecycle.write(text + "\\n")
    def end(*_):
        record(f"{name} ends")
        sys.exit(0)
    signal.signal(signal.SIGTERM, end)
    record(f"{name} starts")
    print(f"{name} speaks", flush=True)
    (place / f"{name}.pid").write_text(str(os.getpid()))
    (place / f"{name}.ready").touch()
    while True:
        time.sleep(60)
"""
IGNORES_SIGNALS = """
    import os, signal, sys, time
    from pathlib import Path
    name, place = sys.argv[1], Path(sys.argv[2])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        (place / f"{name}.detached").write_text(str(os.getpid()))
    else:
        (place / f"{name}.pid").write_text(str(os.getpid()))
    while True:
        time.sleep(60)
"""
# After SIGTERM it waits until the other service has got SIGTERM too.
WAITS_FOR_THE_OTHER = """
    import signal, sys, time
    from pathlib import Path
    name, place = sys.argv[1], Path(sys.argv[2])
    def end(*_):
        (place / f"{name}.asked").touch()
        while len(list(place.glob("*.asked"))) < 2:
            time.sleep(0.01)
        sys.exit(0)
    signal.signal(signal.SIGTERM, end)
    (place / f"{name}.ready").touch()
    while True:
        time.sleep(60)
"""
SPEAKS_WHEN_ASKED = """
    import os, signal, sys, time
    from pathlib import Path
    name, place = sys.argv[1], Path(sys.argv[2])
    signal.signal(signal.SIGUSR1, lambda *_: print(name, "speaks", flush=True))
    (place / f"{name}.pid").write_text(str(os.getpid()))
    (place / f"{name}.ready").touch()
    while True:
        time.sleep(60)
"""
# It creates a file without content, which is possible without room.
LEAVES_A_MARK_AND_FAILS = """
    import os, sys
    from pathlib import Path
    (Path(sys.argv[2]) / f"beat.mark.{os.getpid()}").touch()
    print("last line", flush=True)
    sys.exit(3)
"""
FAILS_AT_ONCE = "import sys; sys.stdout.write('last line'); sys.exit(3)"


@dataclass
class Running:
    """A supervisor in a process of its own, and what it has output."""

    process: subprocess.Popen[str]
    place: Path
    output: Path

    def printed(self, text: str) -> bool:
        return text in self.output.read_text()

    def wait_for(self, text: str, timeout: float = 30) -> None:
        wait_until(lambda: self.printed(text), timeout=timeout, what=text)

    def pid_of(self, name: str, kind: str = "pid", *, other_than: int = 0) -> int:
        file = self.place / f"{name}.{kind}"

        def number() -> int:
            pid = int(file.read_text() or 0) if file.exists() else 0
            return 0 if pid == other_than else pid

        return wait_until(number, what=str(file))

    def all_processes(self) -> list[psutil.Process]:
        return [
            psutil.Process(self.process.pid),
            *psutil.Process(self.process.pid).children(recursive=True),
        ]

    def lifecycle(self) -> list[str]:
        return (self.place / "lifecycle").read_text().splitlines()


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


Start = Callable[..., Running]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    running: list[Running] = []

    def begin(*services: dict[str, object], once: dict[str, object] | None = None) -> Running:
        for order in (*services, *([once] if once else [])):
            order["code"] = textwrap.dedent(str(order["code"]))
        output_file = tmp_path / "output"
        with output_file.open("w") as output:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    textwrap.dedent(DEPLOYMENT),
                    str(tmp_path),
                    json.dumps({"services": services, "once": once}),
                ],
                cwd=PROJECT,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        running.append(Running(process, tmp_path, output_file))
        return running[-1]

    yield begin
    for one in running:
        one.process.kill()
        one.process.wait()


def test_services_start_when_what_they_need_is_ready(start: Start) -> None:
    deployment = start(
        {"name": "api", "code": NORMAL, "needs": ["redis", "postgres"]},
        {"name": "redis", "code": NORMAL, "needs": ["postgres"], "waits": True},
        {"name": "postgres", "code": NORMAL, "waits": True},
    )

    deployment.wait_for("ready")
    deployment.pid_of("api")

    assert deployment.lifecycle() == ["postgres starts", "redis starts", "api starts"]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_request_stops_everything_in_reverse_order(start: Start, how: signal.Signals) -> None:
    names = ["postgres", "redis", "api", "worker"]
    deployment = start(
        *(
            {"name": name, "code": NORMAL, "waits": True, "needs": names[:number]}
            for number, name in enumerate(names)
        )
    )
    deployment.wait_for("ready")
    all_processes = deployment.all_processes()

    # To the whole group, as a terminal does: the signal must not reach the services directly.
    os.killpg(deployment.process.pid, how)

    assert deployment.process.wait(30) == 0
    assert deployment.lifecycle()[len(names) :] == [f"{name} ends" for name in reversed(names)]
    assert deployment.printed("all stopped")
    assert not any(map(alive, all_processes))


def test_services_without_dependents_stop_at_the_same_time(start: Start) -> None:
    deployment = start(
        {"name": "postgres", "code": NORMAL, "waits": True},
        {
            "name": "api",
            "code": WAITS_FOR_THE_OTHER,
            "waits": True,
            "needs": ["postgres"],
            "grace": 60,
        },
        {
            "name": "worker",
            "code": WAITS_FOR_THE_OTHER,
            "waits": True,
            "needs": ["postgres"],
            "grace": 60,
        },
    )
    deployment.wait_for("ready")

    deployment.process.send_signal(signal.SIGINT)

    assert deployment.process.wait(30) == 0
    assert deployment.lifecycle()[-1] == "postgres ends"


def test_a_service_that_fails_at_every_start_ends_the_wait(start: Start) -> None:
    deployment = start({"name": "api", "code": FAILS_AT_ONCE, "waits": True})

    deployment.wait_for("gave up", timeout=20)


def test_output_is_prefixed_and_kept_in_a_log_of_its_own(start: Start) -> None:
    deployment = start({"name": "api", "code": NORMAL}, {"name": "beat", "code": FAILS_AT_ONCE})
    deployment.wait_for("starts again in")
    deployment.wait_for("api speaks")

    assert deployment.printed("api         | api speaks\n")
    assert (deployment.place / "api.log").read_text() == "api speaks\n"
    # The line has no newline at its end.
    assert deployment.printed("beat        | last line\n")


def test_a_service_that_fails_is_reported_with_its_last_lines(start: Start) -> None:
    deployment = start({"name": "beat", "code": FAILS_AT_ONCE})
    deployment.wait_for("starts again in")

    log = (deployment.place / "supervisor.log").read_text()

    log_file = deployment.place / "beat.log"
    report = (
        "beat ended with exit code 3. It starts again in 1 s. "
        f"Its last lines (more in {log_file}):\n    last line\n"
    )
    assert deployment.printed(report)
    assert report in log
    assert re.search(r'ERROR queue=service_failed role=beat code=3 error="ended with exit', log)
    assert not deployment.printed("queue=service_failed"), "log events stay off the terminal"


def test_a_service_that_is_not_shown_prints_to_its_log_only(start: Start) -> None:
    deployment = start(
        {"name": "redis", "code": NORMAL, "shown": False}, {"name": "api", "code": NORMAL}
    )
    deployment.wait_for("api speaks")
    wait_until(lambda: "redis speaks" in (deployment.place / "redis.log").read_text())

    assert not deployment.printed("redis speaks")


def test_a_service_that_dies_is_started_again_with_a_report(start: Start) -> None:
    deployment = start({"name": "api", "code": NORMAL, "waits": True})
    deployment.wait_for("ready")
    first = deployment.pid_of("api")

    os.kill(first, signal.SIGKILL)

    deployment.wait_for("api was killed by signal 9. It starts again in 1 s")
    second = deployment.pid_of("api", other_than=first)
    deployment.wait_for("api is ready again")
    assert alive(psutil.Process(second))


def test_the_pauses_before_a_restart_grow(start: Start) -> None:
    deployment = start({"name": "beat", "code": FAILS_AT_ONCE}, {"name": "api", "code": NORMAL})

    deployment.wait_for("starts again in 1 s")
    deployment.wait_for("starts again in 2 s")
    deployment.wait_for("starts again in 4 s")

    deployment.process.send_signal(signal.SIGTERM)
    assert deployment.process.wait(10) == 0  # does not wait for the pause to end


def test_a_service_that_lost_its_guard_is_started_again(start: Start) -> None:
    deployment = start({"name": "api", "code": NORMAL, "waits": True})
    deployment.wait_for("ready")
    first = deployment.pid_of("api")
    guard = psutil.Process(first).parent()
    assert guard

    guard.kill()

    deployment.wait_for("api lost its guard process")
    deployment.pid_of("api", other_than=first)
    assert not psutil.pid_exists(first) or not alive(psutil.Process(first))


def test_kill_9_of_the_supervisor_leaves_no_process(start: Start) -> None:
    deployment = start(
        {"name": "postgres", "code": NORMAL, "waits": True},
        {"name": "worker", "code": IGNORES_SIGNALS, "grace": 0.5},
    )
    deployment.wait_for("ready")
    for name, kind in (("postgres", "pid"), ("worker", "pid"), ("worker", "detached")):
        deployment.pid_of(name, kind)
    all_processes = deployment.all_processes()
    assert (
        sum(map(alive, all_processes)) == 6
    )  # the supervisor, two guards, two services, one detached process

    deployment.process.kill()
    deployment.process.wait()

    wait_until(lambda: not any(map(alive, all_processes)), timeout=10)
    assert "postgres ends" in deployment.lifecycle()


def test_a_service_that_ignores_signals_is_killed_after_its_grace(start: Start) -> None:
    deployment = start({"name": "worker", "code": IGNORES_SIGNALS, "grace": 0.5})
    deployment.pid_of("worker")
    deployment.pid_of("worker", "detached")
    all_processes = deployment.all_processes()

    deployment.process.send_signal(signal.SIGINT)

    assert deployment.process.wait(10) == 0
    assert not any(map(alive, all_processes))


def test_a_second_stop_request_kills_what_still_runs(start: Start) -> None:
    deployment = start(
        {"name": "postgres", "code": NORMAL, "waits": True},
        {"name": "worker", "code": IGNORES_SIGNALS, "grace": 600},
    )
    deployment.wait_for("ready")
    deployment.pid_of("worker", "detached")
    all_processes = deployment.all_processes()

    deployment.process.send_signal(signal.SIGINT)
    # Sent twice at once, the two signals would count as one request.
    wait_until(lambda: "postgres ends" in deployment.lifecycle())
    deployment.process.send_signal(signal.SIGINT)

    assert deployment.process.wait(20) == 0
    assert "postgres ends" in deployment.lifecycle()
    assert not any(map(alive, all_processes))


def test_a_program_that_runs_once_is_not_started_again(start: Start) -> None:
    step = {"name": "migrate", "code": "print('done'); raise SystemExit(4)"}
    deployment = start({"name": "api", "code": NORMAL}, once=step)

    deployment.wait_for("ready")

    output = deployment.output.read_text()
    assert output.index("migrate     | done") < output.index("once: 4") < output.index("ready")
    assert "starts again" not in output


def test_a_stop_request_ends_a_program_that_runs_once(start: Start) -> None:
    deployment = start(once={"name": "migrate", "code": NORMAL})
    deployment.pid_of("migrate")

    deployment.process.send_signal(signal.SIGINT)

    assert deployment.process.wait(10) == 0
    assert deployment.printed("once: None")
    assert deployment.lifecycle() == ["migrate starts", "migrate ends"]


def test_a_full_disk_does_not_end_the_supervisor(start: Start) -> None:
    """A limit on the size of files makes every write fail, as on a full disk, without root."""
    deployment = start(
        {"name": "api", "code": SPEAKS_WHEN_ASKED, "waits": True},
        {"name": "beat", "code": LEAVES_A_MARK_AND_FAILS},
    )
    deployment.wait_for("ready")
    supervisor, api = psutil.Process(deployment.process.pid), deployment.pid_of("api")
    _, most = supervisor.rlimit(psutil.RLIMIT_FSIZE)

    def starts() -> int:
        return len(list(deployment.place.glob("beat.mark.*")))

    supervisor.rlimit(psutil.RLIMIT_FSIZE, (0, most))
    os.kill(api, signal.SIGUSR1)
    before = starts()
    wait_until(lambda: starts() >= before + 2, what="restarts although no log can be written")
    supervisor.rlimit(psutil.RLIMIT_FSIZE, (most, most))
    os.kill(api, signal.SIGUSR1)

    log = deployment.place / "api.log"
    wait_until(lambda: "api speaks" in log.read_text(), what="the log to be written again")
    assert log.read_text() == "\n(1 writes to this file were lost)\napi speaks\n"
    deployment.wait_for("All log files are written again.")
    assert deployment.output.read_text().count("Cannot write") == 1
    deployment.process.send_signal(signal.SIGTERM)
    assert deployment.process.wait(30) == 0
