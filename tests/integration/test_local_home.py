"""The home directory stores ports and keys, is private, and runs one stack at a time."""

import os
import signal
import socket
import stat
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from overnight_server.local.errors import AlreadyRunning, PortTaken
from overnight_server.local.guarded_program import GuardedProgram, Program
from overnight_server.local.home import Home, LocalConnection
from overnight_server.local.home_lock import HomeHolder, hold, holder_of, is_held
from overnight_server.local.ports import HIGHEST, LOWEST, free_port, is_free

WANTED = {"api": 0, "flower": 0, "postgres": 0, "redis": 0}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "project" / ".overnight")
    home.prepare()
    return home


def connection_of(pid: int) -> LocalConnection:
    return LocalConnection(
        api_url="http://127.0.0.1:1",
        api_key_path="api.key",
        flower_url="http://127.0.0.1:2",
        database_url="postgresql://127.0.0.1:3/overnight",
        redis_url="redis://127.0.0.1:4/0",
        pid=pid,
        flower_login="user overnight",
        started_by="a test",
        ready=True,
    )


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_home_is_found_from_any_directory_below(home: Home) -> None:
    deep = home.path.parent / "a" / "b"
    deep.mkdir(parents=True)
    assert Home.find(Path(".overnight"), deep).path == deep / ".overnight"

    home.choose_ports(WANTED)

    assert Home.find(Path(".overnight"), deep).path == home.path
    assert Home.find(home.path, Path("/")).path == home.path


def test_other_users_cannot_read_a_home(home: Home) -> None:
    home.choose_ports(WANTED)
    home.write_api_key("secret")
    home.credentials.password("redis")
    home.publish(connection_of(1))

    assert mode(home.path) & 0o066 == 0
    assert {mode(path) for path in home.path.iterdir() if path.is_dir()} == {0o700}
    assert {mode(path) for path in home.path.iterdir() if path.is_file()} == {0o600}


def test_the_next_start_restores_the_permissions_of_a_home(home: Home) -> None:
    home.path.chmod(0o777)
    home.logs.chmod(0o777)

    home.prepare()

    assert mode(home.path) & 0o066 == 0
    assert mode(home.logs) == 0o700


def test_ports_are_chosen_once_and_kept(home: Home) -> None:
    first = home.choose_ports(WANTED)

    assert len(set(first.values())) == 4
    assert Home(home.path).choose_ports(WANTED) == first


def test_a_remembered_port_that_is_in_use_is_replaced(home: Home) -> None:
    first = home.choose_ports(WANTED)
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", first["redis"]))
        squatter.listen()

        second = home.choose_ports(WANTED)

    assert second["redis"] != first["redis"]
    assert second | {"redis": first["redis"]} == first


def test_a_configured_port_is_used_but_not_remembered(home: Home) -> None:
    first = home.choose_ports(WANTED)

    assert home.choose_ports(WANTED | {"api": 8080}) == first | {"api": 8080}
    assert home.choose_ports(WANTED) == first


def test_a_configured_port_that_is_in_use_is_an_error(home: Home) -> None:
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", 0))
        squatter.listen()

        with pytest.raises(PortTaken, match="OVERNIGHT_API_PORT"):
            home.choose_ports(WANTED | {"api": squatter.getsockname()[1]})


def test_ports_are_below_the_range_of_outgoing_connections() -> None:
    port = free_port()

    assert LOWEST <= port < HIGHEST
    assert is_free(port)
    with pytest.raises(OSError, match="no free port"):
        free_port(taken=frozenset(range(LOWEST, HIGHEST)))


def test_a_password_is_generated_once_and_kept(home: Home) -> None:
    made = home.credentials.password("redis")

    assert len(made) >= 32
    assert Home(home.path).credentials.password("redis") == made
    assert home.credentials.password("flower") != made


def test_a_second_stack_in_one_home_is_refused_with_the_pid_of_the_first(home: Home) -> None:
    with hold(home.lock):
        with pytest.raises(AlreadyRunning, match=str(os.getpid())), hold(home.lock):
            pass
        assert holder_of(home.lock) == HomeHolder.this_process()

    assert holder_of(home.lock) is None
    assert not is_held(home.lock)


def test_the_lock_waits_for_the_last_service_of_a_killed_stack(home: Home) -> None:
    code = """
        import sys, time
        from pathlib import Path
        from overnight_server.local.guarded_program import GuardedProgram, Program
        from overnight_server.local.home_lock import hold
        with hold(Path(sys.argv[1])) as held:
            deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True)"
            command = [sys.executable, "-c", deaf + "; time.sleep(60)"]
            service = GuardedProgram(Program(command, grace=1.0), held=[held])
            sys.stdin.readline()
    """
    argv = [sys.executable, "-c", textwrap.dedent(code), str(home.lock)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout
        first.stdout.readline()  # the service is deaf by now
        [service] = [
            child
            for child in psutil.Process(first.pid).children(recursive=True)
            if "signal.SIG_IGN" in str(child.cmdline())
        ]
        first.kill()
        first.wait()
        assert is_held(home.lock)
        assert holder_of(home.lock) is None

        with hold(home.lock):
            assert not service.is_running()


def test_a_reused_pid_is_not_the_holder() -> None:
    ourselves = HomeHolder.this_process()

    assert ourselves.is_alive()
    assert not replace(ourselves, started=ourselves.started - 60).is_alive()


def test_a_connection_file_counts_only_while_its_stack_runs(home: Home) -> None:
    home.publish(connection_of(os.getpid()))
    assert home.connection() is None

    with hold(home.lock):
        assert home.connection() == connection_of(os.getpid())
        home.publish(connection_of(os.getpid() + 1))
        assert home.connection() is None
        home.publish(connection_of(os.getpid()))
        home.unpublish()
        assert home.connection() is None


def test_a_zombie_process_does_not_count_as_alive() -> None:
    program = GuardedProgram(Program(["sleep", "60"]))
    holder = HomeHolder(program.pid, psutil.Process(program.pid).create_time())
    assert holder.is_alive()

    program.send_signal(signal.SIGKILL)
    program.wait(10)
    program.close()

    assert not holder.is_alive()
