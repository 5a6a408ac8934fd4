"""Start the whole service on this machine, and stop it again."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TextIO, cast

from overnight.models.enums import PlanTier
from overnight_server import telemetry
from overnight_server.control.keys import authenticate, seed_local_user
from overnight_server.control.sessions import make_sign_in_link
from overnight_server.local.console import Console
from overnight_server.local.errors import AlreadyRunning, LocalError
from overnight_server.local.file_changes import FileChanges
from overnight_server.local.home import Home, LocalConnection
from overnight_server.local.home_lock import HomeHolder, hold, holder_of, is_held
from overnight_server.local.local_stack import LocalStack
from overnight_server.local.logfile import tail
from overnight_server.local.supervisor import Supervisor
from overnight_server.settings import Settings, current
from overnight_server.store.db import ADMIN, APP, DISPATCHER, Db

LOCAL_USER = "local"
FIRST_TASK = """add "say hello" --type echo --payload '{"hello":"world"}' --wait"""
SERVERS_TIMEOUT = 60.0
PROCESSES_TIMEOUT = 120.0
STOP_TIMEOUT = 120.0
HURRY_AFTER = 60.0
INTERRUPTED = 130
TAIL_LINES = 30
# The exit code of `overnight_worker.load_handlers` when a module cannot be imported.
CANNOT_IMPORT = 3
RELOAD = "--reload"


def up(
    settings: Settings,
    *,
    detach: bool = False,
    handlers: Sequence[str] | None = None,
    repositories: Sequence[str] | None = None,
    reload: bool = False,
) -> int:
    """Start everything and run until a stop is requested; return the exit code.

    With `detach`, start it in the background and return when it is ready. `handlers` are the
    modules of the worker, `repositories` the paths at which commands may find git repositories
    besides the working directory; the home keeps both for later starts, and an empty list forgets
    them. With `reload` the worker starts again whenever a Python file of the working directory
    changes.
    """
    home = Home.find(settings.home)
    try:
        home.prepare()
    except OSError as error:
        sys.stderr.write(
            f"Cannot use {home.path} as home: {error}. Set OVERNIGHT_HOME to another directory.\n"
        )
        return 1
    settings = _with_handlers(settings, home, handlers)
    if repositories is not None:
        home.remember_repositories(repositories)
    if detach:
        return _up_detached(settings, home, reload=reload)
    return _run_supervised(settings, home, Console(sys.stdout), reload=reload)


def _with_handlers(settings: Settings, home: Home, chosen: Sequence[str] | None) -> Settings:
    """Return the settings with the modules chosen now, else configured, else remembered.

    The demo handlers are loaded too, unless the setting says otherwise.
    """
    if chosen is not None:
        home.remember_handlers(chosen)
    modules = tuple(settings.handlers or home.handlers) if chosen is None else tuple(chosen)
    # On a machine of one's own the demo handlers are welcome; the tutorial uses them.
    demo = settings.demo_handlers or "demo_handlers" not in settings.model_fields_set
    # For the worker, which reads the environment.
    os.environ["OVERNIGHT_HANDLERS"] = ",".join(modules)
    os.environ["OVERNIGHT_DEMO_HANDLERS"] = str(demo).lower()
    return settings.model_copy(update={"handlers": modules, "demo_handlers": demo})


def down(settings: Settings) -> int:
    """Stop the stack of this home and wait until all its processes have ended."""
    home = Home.find(settings.home)
    holder = holder_of(home.lock)
    if holder is None and not is_held(home.lock):
        sys.stdout.write(f"Overnight is not running in {home.path}; nothing to stop.\n")
        return 0
    if _stop(holder, home.lock):
        sys.stdout.write(f"Overnight has stopped (home {home.path}).\n")
        return 0
    sys.stderr.write(
        f"Overnight is still stopping after {STOP_TIMEOUT:.0f} s. See the logs in {home.logs}.\n"
    )
    return 1


def _stop(holder: HomeHolder | None, lock: Path) -> bool:
    """Request a stop and wait; return whether everything has ended in time."""
    started = time.monotonic()
    requests = 0
    while (is_alive := holder is not None and holder.is_alive()) or is_held(lock):
        waited = time.monotonic() - started
        if waited > STOP_TIMEOUT:
            return False
        # A second request makes the supervisor kill what still runs.
        if holder and is_alive and requests < 1 + (waited > HURRY_AFTER):
            os.kill(holder.pid, signal.SIGTERM)
            requests += 1
        time.sleep(0.05)
    return True


def _run_supervised(settings: Settings, home: Home, console: Console, *, reload: bool) -> int:
    """Start the stack in this process and supervise it; return the exit code."""
    try:
        with ExitStack() as stack:
            stack.callback(console.close)
            lock = stack.enter_context(hold(home.lock))
            _check_handlers(settings)
            home.check_whole()
            with Supervisor(home.logs, console, held=[lock]) as supervisor:
                # Log events of this process go to the supervisor's log, not to the terminal.
                stream = cast("TextIO", supervisor.log)
                telemetry.configure(
                    settings.log_format, settings.log_level, "supervisor", stream=stream
                )
                code = _run_stack(LocalStack.plan(settings, home), supervisor, reload=reload)
            console.message("Overnight has stopped.")
            return code
    except AlreadyRunning as running:
        sys.stderr.write(_already_running_text(running, home))
    except LocalError as error:
        sys.stderr.write(f"Cannot start: {error}\n")
    return 1


def _check_handlers(settings: Settings) -> None:
    """Raise LocalError if a module of OVERNIGHT_HANDLERS cannot be imported.

    Checked before anything starts, because the worker would fail at every start.
    """
    if not settings.handlers:
        return
    command = [sys.executable, "-P", "-m", "overnight_worker.load_handlers", *settings.handlers]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode == CANNOT_IMPORT:
        raise LocalError(finished.stdout.strip())


def _run_stack(stack: LocalStack, supervisor: Supervisor, *, reload: bool) -> int:
    """Start the stack step by step and supervise it; the caller's supervisor stops it."""
    supervisor.report(f"Starting Overnight in {stack.home.path} …")
    if not start_database(stack, supervisor):
        return INTERRUPTED if supervisor.stop_requests else 1
    db = Db.connect(stack.database_url, role=DISPATCHER, application_name="overnight-up")
    try:
        _create_local_user(stack)
        stack.home.publish(stack.connection(ready=False))
        processes = stack.processes(db)
        names = ", ".join(service.name for service in processes)
        supervisor.report(f"Starting {names} …")
        supervisor.add(processes)
        if not supervisor.run_until_ready(PROCESSES_TIMEOUT):
            return _report_failed_start(supervisor)
        stack.home.publish(stack.connection(ready=True))
        connection = stack.connection(ready=True)
        link = _sign_in_link(stack.home, connection)
        supervisor.report(ready_text(connection, stack.settings, dashboard=link, stop="Ctrl-C"))
        supervisor.shows_output = True
        if reload:
            _reload_on_changes(stack.settings, supervisor)
        else:
            supervisor.run()
    finally:
        stack.home.unpublish()
        db.close()
    supervisor.report("Stopping … (Ctrl-C again kills what still runs.)")
    return 0


def start_database(stack: LocalStack, supervisor: Supervisor) -> bool:
    """Start the servers, and bring the schema up to date; report why and return False if not."""
    supervisor.add(stack.servers())
    if not supervisor.run_until_ready(SERVERS_TIMEOUT):
        _report_failed_start(supervisor)
        return False
    if stack.postgres:
        stack.postgres.prepare_owner()
    supervisor.report("Updating the database schema …")
    if supervisor.run_once(stack.migration()) != 0:
        log = stack.home.logs / "migrate.log"
        _report_failed_start(
            supervisor, f"The migration failed. Its last lines:\n{tail(log, TAIL_LINES)}"
        )
        return False
    if stack.postgres:
        stack.postgres.prepare_logins()
    return True


def _reload_on_changes(settings: Settings, supervisor: Supervisor) -> None:
    """Supervise until a stop is requested; start the worker again when a Python file changes.

    While the handlers cannot be imported, the worker keeps those that it has.
    """
    changes = FileChanges(Path.cwd())
    while supervisor.run_until(changes.has_changed):
        try:
            _check_handlers(settings)
        except LocalError as error:
            supervisor.report(f"A file has changed, but the worker keeps its handlers: {error}")
            continue
        supervisor.report("A file has changed: the worker starts again with the new handlers.")
        supervisor.restart("worker")


def _create_local_user(stack: LocalStack) -> None:
    """Create the local user, unless it exists, and write its API key into the home."""
    db = Db.connect(stack.database_url, role=ADMIN, application_name="overnight-up")
    try:
        key = seed_local_user(db, name=LOCAL_USER, plan=PlanTier.TEAM, key=stack.home.api_key())
        stack.home.write_api_key(key)
    finally:
        db.close()


def _report_failed_start(supervisor: Supervisor, reason: str | None = None) -> int:
    """Report why the stack did not become ready; return the exit code."""
    if supervisor.stop_requests:
        supervisor.report("Stopping before everything was started …")
        return INTERRUPTED
    for name in supervisor.unready():
        lines = supervisor.last_lines(name) or ["(it printed nothing)"]
        shown = "\n".join(f"    {line}" for line in lines)
        log = supervisor.logs / f"{name}.log"
        supervisor.report(f"{name} did not become ready. Its last lines (more in {log}):\n{shown}")
    supervisor.report(reason or f"Cannot start. `{command_name()} doctor` checks every part.")
    return 1


def _sign_in_link(home: Home, connection: LocalConnection) -> str:
    """Return a link that signs a browser in to the dashboard, once."""
    db = Db.connect(connection.database_url, role=APP, application_name="overnight-up")
    try:
        caller = authenticate(db, home.api_key() or "")
        path = "/"
        if caller is not None:
            path = make_sign_in_link(db.acting_for(caller.served), caller).path
    finally:
        db.close()
    return connection.api_url + path


def ready_text(
    connection: LocalConnection, settings: Settings, *, dashboard: str, stop: str
) -> str:
    """Return what a user needs to know when everything is ready.

    Paths below the working directory are shortened, so that the lines fit into 80 columns.
    """
    slots = f"{settings.concurrency} tasks" if settings.concurrency > 1 else "1 task"
    text = (
        "\nOvernight is ready.\n\n"
        f"  Open     {dashboard}\n"
        f"  API      {connection.api_url}\n"
        f"  Flower   {connection.flower_url}  ({connection.flower_login})\n"
        f"  Worker   pool {settings.pool}, {slots} at once (OVERNIGHT_CONCURRENCY)\n"
        f"  Logs     {Path(connection.api_key_path).parent / 'logs'}\n\n"
        f"Add a task:  {command_name()} {FIRST_TASK}\n"
        f"Stop:        {stop}\n"
    )
    return text.replace(f"{Path.cwd()}/", "")


def command_name() -> str:
    """Return the command `overnight` as the user of this terminal can type it."""
    installed = Path(sys.executable).with_name("overnight")
    if shutil.which("overnight") or not installed.exists():
        return "overnight"
    if installed.is_relative_to(Path.cwd()):
        return shlex.quote(str(installed.relative_to(Path.cwd())))
    return shlex.quote(str(installed))


def _already_running_text(running: AlreadyRunning, home: Home) -> str:
    connection = home.connection()
    where = f"at {connection.api_url}" if connection else "and is starting or stopping"
    return f"Overnight is {running} {where} (home {home.path}). Stop it: {command_name()} down\n"


def _up_detached(settings: Settings, home: Home, *, reload: bool) -> int:
    """Start the supervisor in the background and wait until the stack is ready or has ended."""
    holder = holder_of(home.lock)
    if holder:
        running = AlreadyRunning(f"already running as process {holder.pid}")
        sys.stderr.write(_already_running_text(running, home))
        return 1
    log = home.logs / "up.log"
    log.unlink(missing_ok=True)
    pid = _spawn_supervisor(home, log, [RELOAD] if reload else [])
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        connection = home.connection()
        if connection and connection.ready and connection.pid == pid:
            link, stop = _sign_in_link(home, connection), f"{command_name()} down"
            sys.stdout.write(ready_text(connection, settings, dashboard=link, stop=stop))
            return 0
        time.sleep(0.1)
    sys.stderr.write(tail(log, TAIL_LINES) + "\n")
    return 1


def _spawn_supervisor(home: Home, log: Path, arguments: Sequence[str]) -> int:
    """Start the supervisor in its own session, which survives the terminal; return its pid."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-P", "-m", "overnight_server.local.up", *arguments],
        dict(os.environ) | {"OVERNIGHT_HOME": str(home.path)},
        setsid=True,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), flags, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
    )


def main() -> int:
    """Run the detached supervisor; the services' output goes to their log files only."""
    settings = current()
    home = Home.find(settings.home)
    console = Console(sys.stdout, quiet=True)
    return _run_supervised(settings, home, console, reload=RELOAD in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
