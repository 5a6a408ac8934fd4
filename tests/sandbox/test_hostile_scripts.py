"""Every hostile script, in each kind of sandbox, under root and user workers: nothing is left.

A script prints a line that begins with ESCAPED when it achieves what it must not. Scripts run in a
sandbox only: each is preceded by a check that it is in one.
"""

import base64
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from overnight_server.settings import Settings
from overnight_worker.sandbox import SandboxKind
from tests.sandbox.conftest import SandboxWorker

SCRIPTS = Path(__file__).parent / "hostile"
GUARD = (
    "import os\nassert os.getuid() == 65534 and os.getcwd() == '/workspace', 'only in a sandbox'\n"
)
SMALL = {"memory_mb": 128, "processes": 64, "workspace_mb": 64, "file_mb": 64, "tmp_mb": 16}
HEARTBEAT = Settings.model_fields["heartbeat_interval"].default


class Script(NamedTuple):
    """How a script may end, what it must have printed, and what else its request says."""

    causes: tuple[str, ...] = ("exit",)
    prints: str = ""
    request: dict[str, Any] = {}  # noqa: RUF012 - never changed


EXPECTED = {
    "archive_names": Script(),
    "burn_cpu": Script(("signal",), request={"limits": {**SMALL, "cpu_seconds": 1}}),
    "closed_folders": Script(),
    "deep_folders": Script(prints="deep"),
    "descriptors": Script(prints=r"\[0, 1, 2, 3\]"),
    "detach": Script(prints="main ends"),
    "devices": Script(),
    "endless_file": Script(request={"collect": "nothing"}),
    "environment": Script(),
    "fill_disk": Script(("workspace_full",)),
    "fill_tmpfs": Script(prints="/dev/shm 16 No space left"),
    "flood_stdout": Script(),
    "forged_events": Script(),
    "fork_bomb": Script(prints="stopped Resource temporarily unavailable"),
    "huge_argument": Script(prints="refused Argument list too long"),
    "ignore_term": Script(("stopped",), "deaf", {"terminate_on": "deaf"}),
    "inotify": Script(prints="instances"),
    "kernel_files": Script(),
    "kernel_interfaces": Script(),
    "keyring": Script(),
    "left_service": Script(),
    "linked_folder": Script(),
    "links_and_pipes": Script(),
    "many_files": Script(("workspace_full",), request={"limits": {**SMALL, "workspace_mb": 4}}),
    "memfd": Script(("exit", "oom")),
    "memory_many": Script(("exit", "oom")),
    "memory_one": Script(("oom",)),
    "memory_shared": Script(("oom",)),
    "namespaces": Script(),
    "open_descriptors": Script(prints=r"10\d\d Too many open files"),
    "planted_modules": Script(),
    "privileges": Script(),
    "shm_segments": Script(("exit", "oom")),
    "signals": Script(prints="alive"),
    "slow_process_1": Script(),
    "sockets": Script(prints="its own loopback works"),
    "sparse_file": Script(prints="refused File too large"),
    "swapped_file": Script(),
    "terminal_codes": Script(),
    "trace": Script(),
    "write_everywhere": Script(),
    "zombies": Script(),
}


def run_script(
    worker: SandboxWorker, sandbox_kind: SandboxKind, name: str, **fields: Any
) -> dict[str, Any]:
    """Run a script in a sandbox of a worker, and check that nothing of it is left."""
    source = GUARD + (SCRIPTS / f"{name}.py").read_text()
    request = {"argv": ["python3", "-"], "stdin": source, "limits": SMALL, "timeout": 90}
    answer: dict[str, Any] = worker.request(sandbox_kind=sandbox_kind, **request | fields)

    assert "no_sandbox" not in answer, answer
    assert not re.findall("^ESCAPED.*", answer["stdout"], re.MULTILINE), answer["stdout"]
    assert not answer["timed_out"], answer
    assert answer["processes_left"] == []
    assert answer["namespace_processes"] == []
    assert answer["descriptors_left"] == 0
    assert answer["files_left"] == []
    assert answer["keys_left"] == []
    assert answer["longest_beat"] < 2 * HEARTBEAT
    return answer


def test_every_script_is_expected_to_end_somehow() -> None:
    assert {path.stem for path in SCRIPTS.glob("*.py")} == set(EXPECTED)
    assert len(EXPECTED) >= 26


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_hostile_script_achieves_and_leaves_nothing(
    worker: SandboxWorker, sandbox_kind: SandboxKind, name: str
) -> None:
    script = EXPECTED[name]

    answer = run_script(worker, sandbox_kind, name, **script.request)

    assert answer["cause"] in script.causes, answer
    assert re.search(script.prints, answer["stdout"]), answer
    if script.causes == ("exit",):
        assert answer["exit_code"] == 0, answer


def test_no_key_of_the_worker_is_found(worker: SandboxWorker, sandbox_kind: SandboxKind) -> None:
    run_script(worker, sandbox_kind, "keyring")


def test_only_regular_files_below_the_workspace_are_collected(
    worker: SandboxWorker, sandbox_kind: SandboxKind
) -> None:
    answer = run_script(worker, sandbox_kind, "links_and_pipes")

    assert {name: base64.b64decode(text) for name, text in answer["collected"].items()} == {
        "-rf\n..": b"odd",
        "good.txt": b"result",
        "same.txt": b"result",
    }
    assert answer["skipped"]["passwd"] == "it is a symbolic link"
    assert answer["skipped"]["pipe"] == "it is not a regular file"
    assert answer["skipped"]["socket"] == "it is not a regular file"
    assert len(answer["skipped"]) == 11


def test_a_folder_of_results_that_is_a_link_is_not_entered(
    worker: SandboxWorker, sandbox_kind: SandboxKind
) -> None:
    answer = run_script(worker, sandbox_kind, "linked_folder")

    assert answer["collected"] == {}
    assert answer["skipped"] == {"out": "it is a symbolic link"}


def test_a_file_that_was_swapped_for_a_link_is_the_file_or_nothing(
    worker: SandboxWorker, sandbox_kind: SandboxKind
) -> None:
    answer = run_script(worker, sandbox_kind, "swapped_file")

    assert {base64.b64decode(text) for text in answer["collected"].values()} <= {b"result"}


def test_modules_in_the_workspace_are_not_loaded_by_a_later_sandbox(
    worker: SandboxWorker, sandbox_kind: SandboxKind
) -> None:
    second = ["sh", "-c", "ls /workspace; true"]

    answer = run_script(worker, sandbox_kind, "planted_modules", again=[second])

    assert answer["again"][0]["exit_code"] == 0
    assert "sitecustomize.py" in answer["again"][0]["stdout"]
    assert "planted-was-run" not in answer["again"][0]["stdout"]


def test_a_flood_of_output_does_not_fill_the_worker(
    worker: SandboxWorker, sandbox_kind: SandboxKind
) -> None:
    answer = run_script(worker, sandbox_kind, "flood_stdout")

    assert answer["totals"]["stdout"] == 256 << 20
    assert answer["memory_growth"] < 32 * 1024


def test_what_a_command_writes_arrives_unchanged(
    worker: SandboxWorker, sandbox_kind: SandboxKind
) -> None:
    answer = run_script(worker, sandbox_kind, "terminal_codes")

    assert answer["stdout"].endswith("<script>alert(1)</script>\0\u202e")
    assert answer["stderr"] == "\ufffd\ufffd\ufffd not UTF-8"


def test_events_come_on_a_descriptor_of_their_own(
    worker: SandboxWorker, sandbox_kind: SandboxKind
) -> None:
    answer = run_script(worker, sandbox_kind, "forged_events")

    assert answer["events"] == '{"result": 1}\n'
    assert answer["stdout"] == ""


def test_instances_of_inotify_are_free_again_after_the_end(
    worker: SandboxWorker, sandbox_kind: SandboxKind
) -> None:
    first = run_script(worker, sandbox_kind, "inotify")
    second = run_script(worker, sandbox_kind, "inotify")

    assert first["stdout"] == second["stdout"]
