"""A guarded program ends when its owner or its guard ends, for any reason."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from overnight_server.local.guarded_program import GuardedProgram, Program
from overnight_server.process_tree import descendants
from tests.support.wait import wait_until

# A service that will not end by itself, with a child that has fled into a session of its own.
STUBBORN = """
    import os, signal, sys, time
    from pathlib import Path
    place = Path(sys.argv[1])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)  # an orphan now, that no group and no parent knows
        (place / "fled").write_text(str(os.getpid()))
    else:
        (place / "main").write_text(str(os.getpid()))
    while True:
        time.sleep(60)
"""
# An owner that starts it under a guard, then goes on as its arguments say.
OWNER = """
    import os, sys, time
    from overnight_server.local.guarded_program import GuardedProgram, Program
    service = GuardedProgram(Program([sys.executable, "-c", sys.argv[2], sys.argv[1]], grace=0.3))
    if sys.argv[3] == "with-heir" and os.fork() == 0:
        time.sleep(20)  # holds a copy of the channel after its parent is gone
        os._exit(0)
    print(service.pid, service.guard_pid, flush=True)
    time.sleep(60)
"""


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(code), *arguments]


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def number_in(path: Path) -> int:
    return wait_until(lambda: path.exists() and int(path.read_text() or 0), what=str(path))


def test_a_program_runs_and_its_exit_code_is_returned() -> None:
    program = GuardedProgram(Program(python("raise SystemExit(7)")))

    assert program.wait(20) == 7
    program.close()


def test_a_program_killed_by_a_signal_returns_128_plus_its_number() -> None:
    program = GuardedProgram(Program(["sleep", "60"]))

    os.kill(program.pid, signal.SIGKILL)

    assert program.wait(20) == 128 + signal.SIGKILL
    program.close()


def test_a_program_that_cannot_be_run_ends_with_127(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        program = GuardedProgram(Program([str(tmp_path / "nothing")]), output=log)
        assert program.wait(20) == 127
        program.close()

    assert "nothing" in (tmp_path / "log").read_text()


def test_a_stop_right_after_the_start_is_not_lost() -> None:
    for _ in range(20):
        program = GuardedProgram(Program(["sleep", "60"], grace=30.0))

        program.request_stop()

        assert program.wait(10) == 128 + signal.SIGTERM
        program.close()


def test_stop_sends_the_stop_signal_to_the_main_process(tmp_path: Path) -> None:
    code = """
        import signal, sys, time
        signal.signal(signal.SIGINT, lambda *_: sys.exit(3))
        open(sys.argv[1], "w").write("1")
        while True:
            time.sleep(60)
    """
    program = GuardedProgram(Program(python(code, str(tmp_path / "up")), stop_signal=signal.SIGINT))
    number_in(tmp_path / "up")

    assert program.stop() == 3


def test_a_program_starts_with_signals_as_they_are_by_default() -> None:
    code = """
        import signal, sys
        usual = (signal.SIG_DFL, signal.default_int_handler)
        numbers = signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}  # Python's own
        changed = [n for n in numbers if signal.getsignal(n) not in usual]
        sys.exit(len(changed) + len(signal.pthread_sigmask(signal.SIG_BLOCK, [])))
    """
    program = GuardedProgram(Program(python(code)))

    assert program.wait(20) == 0
    program.close()


def test_a_program_that_ignores_signals_is_killed_with_its_detached_child(tmp_path: Path) -> None:
    program = GuardedProgram(Program(python(STUBBORN, str(tmp_path)), grace=0.3))
    main, fled = number_in(tmp_path / "main"), number_in(tmp_path / "fled")

    assert program.stop() == 128 + signal.SIGKILL

    assert not alive(main)
    assert not alive(fled)


@pytest.mark.parametrize("manner", ["alone", "with-heir"])
def test_kill_9_of_the_owner_leaves_no_process(tmp_path: Path, manner: str) -> None:
    with subprocess.Popen(
        python(OWNER, str(tmp_path), textwrap.dedent(STUBBORN), manner),
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout
        service, guard = map(int, owner.stdout.readline().split())
        fled = number_in(tmp_path / "fled")
        heirs = [pid for pid in descendants(owner.pid) if pid not in {service, guard, fled}]

        owner.kill()
        owner.wait()

        wait_until(lambda: not any(map(alive, (service, guard, fled))), timeout=10)
        for heir in heirs:
            if alive(heir):
                os.kill(heir, signal.SIGKILL)


def test_a_service_does_not_outlive_a_guard_that_is_killed() -> None:
    program = GuardedProgram(Program(["sleep", "60"]))

    os.kill(program.guard_pid, signal.SIGKILL)

    wait_until(lambda: not alive(program.pid), timeout=10)
    code = program.wait(10)
    assert code is not None
    assert code < 0
    program.close()


def test_the_children_of_a_service_that_lost_its_guard_are_killed_too(tmp_path: Path) -> None:
    code = """
        import signal, subprocess, sys, time
        child = subprocess.Popen(["sleep", "60"])
        open(sys.argv[1], "w").write(str(child.pid))
        time.sleep(60)
    """
    program = GuardedProgram(Program(python(code, str(tmp_path / "child"))))
    child = number_in(tmp_path / "child")

    os.kill(program.guard_pid, signal.SIGKILL)

    wait_until(lambda: program.exit_code() is not None, timeout=10)
    wait_until(lambda: not alive(child), timeout=10)
    program.close()


def test_a_held_file_stays_open_until_the_service_has_ended() -> None:
    reader, writer = os.pipe()
    program = GuardedProgram(Program(["sleep", "60"]), held=[writer])
    os.close(writer)
    os.set_blocking(reader, False)

    with pytest.raises(BlockingIOError):
        os.read(reader, 1)
    files = Path(f"/proc/{program.pid}/fd")
    # The service itself does not get it; before its exec it still has the guard's files.
    wait_until(lambda: {file.name for file in files.iterdir()} == {"0", "1", "2"}, timeout=10)
    program.stop()

    assert os.read(reader, 1) == b""
    os.close(reader)


def test_no_argument_contains_a_password() -> None:
    env = dict(os.environ) | {"PGPASSWORD": "hunter2"}
    program = GuardedProgram(Program(python("import time; time.sleep(60)"), env=env))

    shown = [psutil.Process(pid).cmdline() for pid in (program.pid, program.guard_pid)]
    kept = wait_until(lambda: psutil.Process(program.pid).environ().get("PGPASSWORD"))
    program.stop()

    assert kept == "hunter2"
    assert "hunter2" not in json.dumps(shown)


def test_two_guards_do_not_keep_each_other_alive() -> None:
    first = GuardedProgram(Program(["sleep", "60"]))
    second = GuardedProgram(Program(["sleep", "60"]))

    first.close()

    assert first.wait(10) == 128 + signal.SIGTERM
    assert second.exit_code() is None
    second.stop()
