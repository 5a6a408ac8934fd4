"""Bring the whole deployment up on this machine, and take it down again."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from overnight_server.control.keys import seed_local_user
from overnight_server.domain.plans import PlanTier
from overnight_server.local.console import Console
from overnight_server.local.errors import AlreadyRunning, LocalError
from overnight_server.local.home import Connection, Home
from overnight_server.local.home_lock import Holder, hold, holder_of, is_held
from overnight_server.local.local_stack import LocalStack
from overnight_server.local.logfile import tail
from overnight_server.local.supervisor import Supervisor
from overnight_server.settings import Settings, current
from overnight_server.store.db import ADMIN, DISPATCHER, Db

LOCAL_USER = "local"
FIRST_TASK = """add "say hello" --type echo --payload '{"hello":"world"}' --wait"""
SERVERS_TIMEOUT = 60.0
PROCESSES_TIMEOUT = 120.0
STOP_TIMEOUT = 120.0
HURRY_AFTER = 60.0
INTERRUPTED = 130
TAIL = 30
# How `overnight_worker.load_handlers` ends when a module cannot be imported.
CANNOT_IMPORT = 3


def up(settings: Settings, *, detach: bool = False) -> int:
    """Start everything and stay until told to stop; with `detach`, return when it is ready."""
    home = Home.find(settings.home)
    try:
        home.prepare()
    except OSError as refusal:
        sys.stderr.write(f"cannot use {home.path} as home: {refusal}; set OVERNIGHT_HOME\n")
        return 1
    if detach:
        return _up_detached(home)
    return _up_here(settings, home, Console(sys.stdout))


def down(settings: Settings) -> int:
    """Stop the stack of this home, whoever started it, and wait until all its processes ended."""
    home = Home.find(settings.home)
    holder = holder_of(home.lock)
    if holder is None and not is_held(home.lock):
        sys.stdout.write(f"nothing is running here ({home.path})\n")
        return 0
    if _stop(holder, home.lock):
        sys.stdout.write(f"stopped ({home.path})\n")
        return 0
    sys.stderr.write(f"still stopping after {STOP_TIMEOUT:.0f} s; see {home.logs}\n")
    return 1


def _stop(holder: Holder | None, lock: Path) -> bool:
    started = time.monotonic()
    requests = 0
    while (alive := holder is not None and holder.is_alive()) or is_held(lock):
        waited = time.monotonic() - started
        if waited > STOP_TIMEOUT:
            return False
        # The second request makes a supervisor hurry.
        if holder and alive and requests < 1 + (waited > HURRY_AFTER):
            os.kill(holder.pid, signal.SIGTERM)
            requests += 1
        time.sleep(0.05)
    return True


def _up_here(settings: Settings, home: Home, console: Console) -> int:
    try:
        with ExitStack() as stack:
            stack.callback(console.close)
            held = stack.enter_context(hold(home.lock))
            _check_handlers(settings)
            with Supervisor(home.logs, console, held=[held]) as supervisor:
                code = _live(LocalStack.plan(settings, home), supervisor)
            console.say("Overnight has stopped.")
            return code
    except AlreadyRunning as running:
        sys.stderr.write(_refusal(running, home))
    except LocalError as problem:
        sys.stderr.write(f"cannot start: {problem}\n")
    return 1


def _check_handlers(settings: Settings) -> None:
    """Refuse to start with handlers that no worker could import; a worker would fall for ever."""
    if not settings.handlers:
        return
    asked = [sys.executable, "-P", "-m", "overnight_worker.load_handlers", *settings.handlers]
    tried = subprocess.run(asked, capture_output=True, text=True, check=False)
    if tried.returncode == CANNOT_IMPORT:
        raise LocalError(tried.stdout.strip())


def _live(stack: LocalStack, supervisor: Supervisor) -> int:
    """Start the stack step by step, then wait; the caller's supervisor stops what was started."""
    supervisor.say(f"starting in {stack.home.path}")
    supervisor.add(stack.servers())
    if not supervisor.run_until_ready(SERVERS_TIMEOUT):
        return _gave_up(supervisor)
    if stack.postgres:
        stack.postgres.prepare_owner()
    if supervisor.run_once(stack.migration()) != 0:
        return _gave_up(supervisor, "the migration failed; see above")
    if stack.postgres:
        stack.postgres.prepare_logins()
    db = Db.connect(stack.database_url, role=DISPATCHER, application_name="overnight-up")
    try:
        _seed(stack)
        stack.home.publish(stack.connection(ready=False))
        supervisor.add(stack.processes(db))
        if not supervisor.run_until_ready(PROCESSES_TIMEOUT):
            return _gave_up(supervisor)
        stack.home.publish(stack.connection(ready=True))
        supervisor.say(_ready_text(stack.connection(ready=True), stop="Ctrl-C"))
        supervisor.run()
    finally:
        stack.home.retract()
        db.close()
    supervisor.say("stopping")
    return 0


def _seed(stack: LocalStack) -> None:
    db = Db.connect(stack.database_url, role=ADMIN, application_name="overnight-up")
    try:
        key = seed_local_user(db, name=LOCAL_USER, plan=PlanTier.TEAM, key=stack.home.api_key())
        stack.home.keep_api_key(key)
    finally:
        db.close()


def _gave_up(supervisor: Supervisor, reason: str | None = None) -> int:
    if supervisor.stop_requests:
        supervisor.say("stopping before everything was up")
        return INTERRUPTED
    for name in supervisor.unready():
        supervisor.say(f"{name} did not become ready; the last it said:")
        for line in supervisor.last_words(name) or ["(nothing)"]:
            supervisor.say(f"    {line}")
    supervisor.say(reason or f"giving up; `{command()} doctor` may know more")
    return 1


def _ready_text(connection: Connection, *, stop: str) -> str:
    return (
        f"\nOvernight is ready:  {connection.api_url}\n"
        f"Flower:              {connection.flower_url}  ({connection.flower_login})\n"
        f"Now try:             {command()} {FIRST_TASK}\n"
        f"Stop with:           {stop}\n"
    )


def command() -> str:
    """How the person at this terminal calls us."""
    installed = Path(sys.executable).with_name("overnight")
    if shutil.which("overnight") or not installed.exists():
        return "overnight"
    if installed.is_relative_to(Path.cwd()):
        return shlex.quote(str(installed.relative_to(Path.cwd())))
    return shlex.quote(str(installed))


def _refusal(running: AlreadyRunning, home: Home) -> str:
    connection = home.connection()
    where = f"at {connection.api_url}" if connection else "and is starting or stopping"
    return f"Overnight is {running} {where} (home {home.path}); `{command()} down` stops it\n"


def _up_detached(home: Home) -> int:
    holder = holder_of(home.lock)
    if holder:
        sys.stderr.write(_refusal(AlreadyRunning(f"already running as process {holder.pid}"), home))
        return 1
    log = home.logs / "up.log"
    log.unlink(missing_ok=True)
    pid = _spawn(home, log)
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        connection = home.connection()
        if connection and connection.ready and connection.pid == pid:
            sys.stdout.write(_ready_text(connection, stop=f"{command()} down"))
            return 0
        time.sleep(0.1)
    sys.stderr.write(tail(log, TAIL) + "\n")
    return 1


def _spawn(home: Home, log: Path) -> int:
    """Start ourselves again in a session of our own, where no terminal's end reaches us."""
    writing = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-P", "-m", "overnight_server.local.up"],
        dict(os.environ) | {"OVERNIGHT_HOME": str(home.path)},
        setsid=True,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), writing, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
    )


def main() -> int:
    """Be the detached deployment: the processes' own lines go to their log files only."""
    settings = current()
    home = Home.find(settings.home)
    return _up_here(settings, home, Console(sys.stdout, quiet=True))


if __name__ == "__main__":
    sys.exit(main())
