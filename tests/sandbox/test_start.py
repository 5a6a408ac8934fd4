"""What a command gets, how its end is reported, and how it is stopped, in each kind of sandbox."""

import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import MAGIC_NUMBER
from pathlib import Path

import psutil
import pytest

from overnight_worker.sandbox import (
    NetworkPolicy,
    SandboxKind,
    SandboxSpec,
    create_workspace,
    remove_workspace,
    start,
    start_sandbox,
)
from overnight_worker.sandbox.interpreter import Interpreter
from overnight_worker.sandbox.memory_group import NAME_PREFIX
from tests.sandbox.conftest import ROOT, SANDBOX_KINDS, SandboxWorker

FETCH = """
import sys, urllib.request, urllib.error
for url in sys.argv[1:]:
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            print(answer.status, answer.read().decode())
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode().strip())
    except OSError as error:
        print("failed", error)
"""
TUNNEL = """
import http.client, sys
connection = http.client.HTTPConnection("127.0.0.1", 3128, timeout=20)
connection.set_tunnel(sys.argv[1], int(sys.argv[2]))
try:
    connection.request("GET", "/")
    print(connection.getresponse().read().decode())
except OSError as error:
    print(error)
"""


class Page(BaseHTTPRequestHandler):
    """Answers with what it was asked."""

    def do_GET(self) -> None:
        body = f"{self.headers['Host']} {self.path}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Write nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_command_has_its_input_and_a_small_environment(
    worker: SandboxWorker, sandbox_kind: SandboxKind
) -> None:
    answer = worker.request(
        sandbox_kind=sandbox_kind,
        argv=["sh", "-c", "cat; env | cut -d= -f1 | sort | tr '\\n' ' '; pwd; hostname; id -un"],
        stdin="a prompt\n",
        env={"GIVEN": "value"},
    )

    names = "ABSTRACT CANARY GIVEN HOME LANG OVERNIGHT_EVENTS_FD PATH PATHNAME PORT PWD TMPDIR"
    assert answer["stdout"] == f"a prompt\n{names} /workspace\nsandbox\nagent\n"
    assert (answer["cause"], answer["exit_code"]) == ("exit", 0)


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("exit 75", ("exit", 75, None)),
        ("kill -SEGV $$", ("signal", None, 11)),
        ("kill -KILL $$", ("signal", None, 9)),
    ],
)
def test_the_end_of_a_command_is_told(
    worker: SandboxWorker,
    sandbox_kind: SandboxKind,
    script: str,
    told: tuple[str, int | None, int | None],
) -> None:
    answer = worker.request(sandbox_kind=sandbox_kind, argv=["sh", "-c", script])

    assert (answer["cause"], answer["exit_code"], answer["signal"]) == told


@pytest.mark.parametrize(("program", "code"), [("no-such-program", 127), ("/etc", 126)])
def test_a_command_that_cannot_be_executed_ends_as_in_a_shell(
    worker: SandboxWorker, sandbox_kind: SandboxKind, program: str, code: int
) -> None:
    answer = worker.request(sandbox_kind=sandbox_kind, argv=[program])

    assert answer["exit_code"] == code
    assert answer["stderr"].startswith(f"overnight: cannot run {program}")


def test_a_command_may_end_by_itself_when_asked(
    worker: SandboxWorker, sandbox_kind: SandboxKind
) -> None:
    script = "trap 'echo saved; exit 3' TERM; echo ready; while :; do sleep 0.05; done"

    answer = worker.request(
        sandbox_kind=sandbox_kind, argv=["sh", "-c", script], terminate_on="ready", grace=60
    )

    assert answer["stdout"] == "ready\nsaved\n"
    assert (answer["cause"], answer["exit_code"]) == ("stopped", 3)


def test_a_command_inherits_no_signals_and_no_mask(
    worker: SandboxWorker, sandbox_kind: SandboxKind
) -> None:
    signals = ["grep", "-E", "^Sig(Blk|Ign):", "/proc/self/status"]

    assert (
        worker.request(sandbox_kind=sandbox_kind, argv=signals)["stdout"].split()[1::2]
        == ["0" * 16] * 2
    )
    assert (
        worker.request(sandbox_kind=sandbox_kind, argv=["sh", "-c", "umask"])["stdout"] == "0022\n"
    )


def test_a_file_of_the_host_is_mounted_and_cannot_be_changed(
    worker: SandboxWorker, sandbox_kind: SandboxKind
) -> None:
    shown = Path(__file__).resolve().parents[2] / "LICENSE"
    copy = Path("/var/tmp") / f"overnight-mount-{worker.kind}-{sandbox_kind}"
    copy.write_bytes(shown.read_bytes())
    copy.chmod(0o666)
    script = "head -1 /opt/tool/LICENSE; echo x >> /opt/tool/LICENSE || echo refused"
    try:
        answer = worker.request(
            sandbox_kind=sandbox_kind,
            argv=["sh", "-c", script],
            mounts=[[str(copy), "/opt/tool/LICENSE"]],
        )
    finally:
        copy.unlink()

    assert answer["stdout"].splitlines() == [shown.read_text().splitlines()[0], "refused"]


def test_values_of_the_environment_are_in_no_command_line_of_the_host(
    worker: SandboxWorker, sandbox_kind: SandboxKind
) -> None:
    request = {"argv": ["sh", "-c", "echo ready; sleep 1"], "env": {"TOKEN": "secret-27182"}}
    answers: list[dict[str, object]] = []
    thread = threading.Thread(
        target=lambda: answers.append(worker.request(sandbox_kind=sandbox_kind, **request))
    )
    thread.start()

    seen: set[str] = set()
    while thread.is_alive():
        for process in psutil.process_iter(["cmdline"]):
            seen |= {word for word in process.info["cmdline"] or [] if "secret-27182" in word}

    assert answers[0]["exit_code"] == 0
    assert seen == set()


def test_a_limit_of_memory_is_told_with_the_peak(
    worker: SandboxWorker, sandbox_kind: SandboxKind
) -> None:
    script = "import time\nblock = bytearray(b'x') * (256 << 20)\ntime.sleep(60)"

    answer = worker.request(
        sandbox_kind=sandbox_kind,
        argv=["python3", "-c", script],
        limits={"memory_mb": 64, "tmp_mb": 8},
    )

    assert answer["cause"] == "oom"
    assert answer["peak_memory"] > 32 << 20
    assert answer["detail"] == (
        "the processes of the command used more memory than the task may use"
    )


def test_a_named_host_is_reached_through_the_proxy_and_no_other(
    worker: SandboxWorker, sandbox_kind: SandboxKind, port: int
) -> None:
    urls = ["http://agent.example/path?x=1", "http://other.example/", "http://agent.example:81/"]

    answer = worker.request(
        sandbox_kind=sandbox_kind,
        argv=["python3", "-c", FETCH, *urls],
        allow=["agent.example"],
        connect_to=port,
    )

    assert answer["stdout"].splitlines() == [
        "200 agent.example /path?x=1",
        "403 the task allows only agent.example",
        "403 the task allows only agent.example",
    ], answer
    assert answer["reports"][0] == "connected to agent.example:80"
    assert answer["reports"][1].startswith("refused a connection to other.example:80")
    assert answer["descriptors_left"] == 0


def test_a_tunnel_leads_to_a_named_host_only(
    worker: SandboxWorker, sandbox_kind: SandboxKind, port: int
) -> None:
    named = worker.request(
        sandbox_kind=sandbox_kind,
        argv=["python3", "-c", TUNNEL, "agent.example", "8443"],
        allow=["agent.example:8443"],
        connect_to=port,
    )
    other = worker.request(
        sandbox_kind=sandbox_kind,
        argv=["python3", "-c", TUNNEL, "agent.example", "443"],
        allow=["agent.example:8443"],
        connect_to=port,
    )

    assert named["stdout"] == "agent.example:8443 /\n"
    assert other["stdout"] == "Tunnel connection failed: 403 Forbidden\n"


def test_a_name_with_a_private_address_is_refused_though_it_is_named(
    worker: SandboxWorker, sandbox_kind: SandboxKind, port: int
) -> None:
    hosts = ["localhost", "127.0.0.1", "169.254.169.254", "[::1]"]
    urls = [f"http://{host}:{port}/" for host in hosts]
    script = f"import os; os.environ['no_proxy'] = os.environ['NO_PROXY'] = ''\n{FETCH}"

    answer = worker.request(
        sandbox_kind=sandbox_kind,
        argv=["python3", "-c", script, *urls],
        allow=[f"{host.strip('[]')}:{port}" for host in hosts],
    )

    lines = answer["stdout"].splitlines()
    assert [line.split()[0] for line in lines] == ["403"] * 4, answer
    assert all("has the private address" in line for line in lines)


@pytest.fixture
def workspace() -> Iterator[Path]:
    parent = Path(tempfile.mkdtemp(prefix="overnight-sandbox-", dir="/var/tmp"))
    parent.chmod(0o711)
    workspace = create_workspace(parent)
    yield workspace
    remove_workspace(workspace)
    parent.rmdir()


def test_a_sandbox_ends_when_the_other_end_of_its_channel_is_closed(
    workspace: Path, sandbox_kind: SandboxKind
) -> None:
    spec = SandboxSpec(argv=("sleep", "300"), workspace=workspace)
    with start_sandbox(spec, sandbox_kind) as sandbox:
        sandbox._channel.shutdown(socket.SHUT_RDWR)

        ended = sandbox.wait(20)

    assert ended is not None, "the sandbox lives on"
    assert ended.cause == "failed"
    assert "exit code 81" in ended.detail


def test_no_descriptor_of_a_sandbox_is_inherited_by_other_programs(
    workspace: Path, sandbox_kind: SandboxKind
) -> None:
    def inheritable() -> set[int]:
        numbers = [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]
        open_numbers = [each for each in numbers if Path(f"/proc/self/fd/{each}").exists()]
        return {number for number in open_numbers if os.get_inheritable(number)}

    before = inheritable()
    network = NetworkPolicy(("agent.example",))
    spec = SandboxSpec(argv=("sleep", "300"), workspace=workspace, network=network)

    with start_sandbox(spec, sandbox_kind):
        assert inheritable() == before


def test_every_process_is_in_the_group_that_limits_the_memory(
    workspace: Path, sandbox_kind: SandboxKind
) -> None:
    spec = SandboxSpec(argv=("sh", "-c", "echo started; sleep 300"), workspace=workspace)
    with start_sandbox(spec, sandbox_kind) as sandbox:
        os.read(sandbox.stdout, 16)
        process_1 = psutil.Process(sandbox.pid)
        pids = [process_1.pid, *(child.pid for child in process_1.children(recursive=True))]

        groups = [Path(f"/proc/{pid}/cgroup").read_text() for pid in pids]

    assert len(groups) > 1
    assert [NAME_PREFIX in group for group in groups] == [sandbox.is_memory_enforced] * len(groups)


def test_a_python_of_another_version_compiles_process_1_itself(
    workspace: Path, sandbox_kind: SandboxKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = start.LOADER.replace(ascii(MAGIC_NUMBER), ascii(b"another version"))
    monkeypatch.setattr(start, "LOADER", other)
    monkeypatch.setattr(start, "_compiled", lambda name: (name, b"no code", start.SOURCES[name]))

    with start_sandbox(SandboxSpec(argv=("true",), workspace=workspace), sandbox_kind) as sandbox:
        ended = sandbox.wait()

    assert ended is not None
    assert (ended.cause, ended.exit_code) == ("exit", 0)


if SandboxKind.BUBBLEWRAP in SANDBOX_KINDS:

    def test_a_python_outside_of_usr_is_mounted_to_run_process_1(
        workspace: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        python = workspace.parent / "python" / "bin" / "python3"
        python.parent.mkdir(parents=True)
        # It finds the modules of the system's Python, of which it is a copy.
        shutil.copy(Path("/usr/bin/python3").resolve(), python)
        prefix = str(python.parent.parent)
        monkeypatch.setattr(start, "inside_interpreter", lambda: Interpreter(str(python), prefix))
        spec = SandboxSpec(argv=("cat", "/proc/1/cmdline"), workspace=workspace)

        with start_sandbox(spec, SandboxKind.BUBBLEWRAP) as sandbox:
            ended = sandbox.wait()
            output = os.read(sandbox.stdout, 4096)
        shutil.rmtree(prefix)

        assert ended is not None
        assert (ended.cause, ended.exit_code) == ("exit", 0)
        assert output.split(b"\0")[0] == bytes(python)


if ROOT:

    def test_a_workspace_that_the_user_of_the_sandbox_cannot_reach_is_refused(
        sandbox_workers: dict[str, SandboxWorker],
    ) -> None:
        worker = sandbox_workers["root"]
        worker.parent.chmod(0o700)
        try:
            refused = worker.request(sandbox_kind=SandboxKind.BUBBLEWRAP, argv=["true"])
            own = worker.request(sandbox_kind=SandboxKind.OWN, argv=["true"])
        finally:
            worker.parent.chmod(0o711)

        assert "Permission denied" in refused["no_sandbox"]
        assert "chmod o+x" in refused["remedy"]
        assert own["exit_code"] == 0


def test_a_probe_makes_a_sandbox_of_each_kind(
    worker: SandboxWorker, sandbox_kind: SandboxKind
) -> None:
    probes = {probe["kind"]: probe for probe in worker.request(probe=True)}

    assert probes[sandbox_kind]["usable"], probes
    assert probes[sandbox_kind]["memory"] in {"cgroup", "measured"}
