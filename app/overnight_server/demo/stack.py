"""`overnight demo`: a Postgres, a Redis and an API of their own, in which the night is played."""

import shlex
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TextIO, cast

from overnight.models.enums import PlanTier
from overnight_server import telemetry
from overnight_server.control.keys import authenticate, issue, seed_local_user
from overnight_server.control.sessions import make_sign_in_link
from overnight_server.demo.night import DEMO_NIGHT, EVENING, SIGNED_UP, ZONE, at_minute
from overnight_server.demo.play import DemoDatabases, Player
from overnight_server.insight.tasks import list_tasks
from overnight_server.local.console import Console
from overnight_server.local.errors import AlreadyRunning, LocalError
from overnight_server.local.home import Home
from overnight_server.local.home_lock import hold
from overnight_server.local.local_stack import LocalStack
from overnight_server.local.supervisor import Supervisor
from overnight_server.local.up import command_name, start_database
from overnight_server.settings import Settings
from overnight_server.store.db import ADMIN, APP, DISPATCHER, Db
from overnight_server.store.demo_clock import DemoClock
from overnight_server.wakeups.wake import Waker

OWNER: Final = "overnight_owner"
#: Below the home of the local stack, which the demo leaves alone.
DIRECTORY: Final = "demo"
VISITOR, OPERATOR = "ada", "operator"
READY_TIMEOUT: Final = 60.0
#: Seconds between two looks at a demo that goes on.
PAUSE: Final = 1.0


@dataclass(frozen=True)
class DemoReport:
    """What `overnight demo` made: counts of tasks by state, and links that sign a browser in.

    Without an API that stays there are no links.
    """

    tasks: dict[str, int]
    seconds: float
    home: str
    links: dict[str, str]


@dataclass
class _Night:
    """The playing thread: it plays the night, and goes on with it until it is stopped."""

    player: Player
    seconds: float
    is_over: bool = False
    error: Exception | None = None
    took: float = 0.0
    _stop: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def playing(self) -> Iterator[None]:
        """Play in a thread until the block ends."""
        thread = threading.Thread(target=self._run, name="night", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def _run(self) -> None:
        try:
            if self._play():
                self.is_over = True
                while not self._stop.wait(PAUSE):
                    self.player.go_on()
                self.player.stop()
        except Exception as error:  # noqa: BLE001 - the main thread raises it
            self.error = error

    def _play(self) -> bool:
        """Play until the morning, evenly over the seconds; return False if a stop came first."""
        began = time.monotonic()
        length = at_minute(self.player.night.morning) - EVENING
        for instant in self.player.play():
            due = began + self.seconds * ((instant - EVENING) / length)
            if self._stop.wait(max(due - time.monotonic(), 0.0)):
                return False
        self.took = round(time.monotonic() - began, 1)
        return True


def run_demo(
    settings: Settings, *, seconds: float = 0.0, stays: bool = True, is_quiet: bool = False
) -> DemoReport:
    """Play the night in a new home; with `stays`, serve it until a stop is requested.

    The night takes about `seconds`, or as long as the engine needs. Raises LocalError if the demo
    cannot start, for instance because another one runs.
    """
    home = Home(Home.find(settings.home).path / DIRECTORY)
    # The ports of a stack that may run beside the demo are left alone.
    settings = settings.model_copy(
        update={"api_port": 0, "flower_port": 0, "database_url": "", "redis_url": ""}
    )
    try:
        home.prepare()
        with hold(home.lock) as lock:
            _empty(home)
            console = Console(sys.stderr if is_quiet else sys.stdout, quiet=True)
            with ExitStack() as closing:
                closing.callback(console.close)
                with Supervisor(home.logs, console, held=[lock]) as supervisor:
                    telemetry.configure(
                        settings.log_format,
                        settings.log_level,
                        "demo",
                        stream=cast("TextIO", supervisor.log),
                    )
                    stack = LocalStack.plan(settings, home)
                    return _run(stack, supervisor, seconds=seconds, stays=stays)
    except AlreadyRunning as running:
        where = f"OVERNIGHT_HOME={home.path} {command_name()} down"
        raise LocalError(f"a demo is {running}. Stop it with Ctrl-C, or: {where}") from running
    except OSError as error:
        raise LocalError(f"{home.path} cannot be used: {error}") from error


def _empty(home: Home) -> None:
    """Remove what an earlier demo left: each demo begins with an empty database."""
    for directory in (home.postgres, home.redis, home.artifacts):
        shutil.rmtree(directory, ignore_errors=True)
    home.api_key_path.unlink(missing_ok=True)
    home.prepare()


def _run(stack: LocalStack, supervisor: Supervisor, *, seconds: float, stays: bool) -> DemoReport:
    supervisor.report(f"Preparing the demo in {stack.home.path} …")
    if not start_database(stack, supervisor):
        raise LocalError(f"Postgres or Redis did not start; see the logs in {stack.home.logs}")
    with _connected(stack) as player:
        player.begin()
        processes = stack.processes(player.databases.engine)
        supervisor.add([process for process in processes if process.name == "api"])
        if not supervisor.run_until_ready(READY_TIMEOUT):
            raise LocalError(f"the API did not start; see {stack.home.logs / 'api.log'}")
        keys = _make_keys(stack, player)
        stack.home.publish(stack.connection(ready=True))
        try:
            return _play_and_serve(stack, supervisor, _Night(player, seconds), keys, stays=stays)
        finally:
            stack.home.unpublish()


@contextmanager
def _connected(stack: LocalStack) -> Iterator[Player]:
    """Connect to the new database, and give it a clock that can be moved."""
    waker = Waker(stack.redis_url)
    owner, admin, engine = (
        Db.connect(stack.database_url, role=role, application_name="overnight-demo", wake_ups=waker)
        for role in (OWNER, ADMIN, DISPATCHER)
    )
    try:
        clock = DemoClock(owner, SIGNED_UP)
        yield Player(DEMO_NIGHT, DemoDatabases(admin, engine), clock, stack.settings)
    finally:
        for db in (owner, admin, engine):
            db.close()
        waker.close()


def _play_and_serve(
    stack: LocalStack, supervisor: Supervisor, night: _Night, keys: dict[str, str], *, stays: bool
) -> DemoReport:
    """Play the night, report it, and serve it until a stop is requested."""
    if night.seconds:
        # The clock goes on while somebody opens the page; the link is valid for ten minutes.
        night.player.clock.go_on_from(EVENING)
        link = _links(stack, keys)[VISITOR]
        supervisor.report(f"\nThe night takes {night.seconds:.0f} seconds. Watch it: {link}")
    with night.playing():
        supervisor.run_until(lambda: night.is_over or night.error is not None)
        if night.error is not None:
            raise night.error
        if not night.is_over:
            raise LocalError("the demo was stopped before its night was over")
        report = DemoReport(
            tasks=_count_by_state(night.player),
            seconds=night.took,
            home=str(stack.home.path),
            links=_links(stack, keys) if stays else {},
        )
        if stays:
            supervisor.report(_text(stack, report))
            supervisor.run()
        return report


def _make_keys(stack: LocalStack, player: Player) -> dict[str, str]:
    """Return a key of the visitor, which the home keeps for commands, and one of an admin."""
    admin = player.databases.admin
    visitor = issue(admin, player.users[VISITOR], name="demo")
    stack.home.write_api_key(visitor)
    operator = seed_local_user(admin, name=OPERATOR, plan=PlanTier.TEAM, key=None)
    return {VISITOR: visitor, OPERATOR: operator}


def _links(stack: LocalStack, keys: dict[str, str]) -> dict[str, str]:
    """Return a link for each key that signs a browser in, once."""
    db = Db.connect(stack.database_url, role=APP, application_name="overnight-demo")
    try:
        links = {}
        for name, key in keys.items():
            caller = authenticate(db, key)
            if caller is not None:
                path = make_sign_in_link(db.acting_for(caller.served), caller).path
                links[name] = stack.api_url + path
        return links
    finally:
        db.close()


def _count_by_state(player: Player) -> dict[str, int]:
    admin = player.databases.admin
    tasks = [
        task
        for user_id in player.users.values()
        for task in list_tasks(admin, user_id, limit=len(player.night.tasks))
    ]
    return dict(sorted(Counter(task.state for task in tasks).items()))


def _text(stack: LocalStack, report: DemoReport) -> str:
    counts = ", ".join(f"{count} {state}" for state, count in report.tasks.items())
    command = f"OVERNIGHT_HOME={shlex.quote(_short(stack.home.path))} {command_name()}"
    return (
        f"\nThe night is over: {counts}. It is Tuesday morning, 07:12 in {ZONE}.\n\n"
        f"  As {VISITOR}       {report.links[VISITOR]}\n"
        f"  As {OPERATOR}  {report.links[OPERATOR]}\n"
        f"  Commands     {command} list\n\n"
        "The clock goes on from here, and what you retry, approve or add runs.\n"
        "Ctrl-C ends the demo.\n"
    )


def _short(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
