"""The parts of the sandbox that decide without the kernel: arguments, users, groups, hosts."""

import socket
from pathlib import Path

import pytest

from overnight_worker.sandbox import (
    NetworkPolicy,
    NoSandbox,
    ReadOnlyMount,
    SandboxLimits,
    SandboxSpec,
    proxy,
    remedies,
)
from overnight_worker.sandbox.bubblewrap import bubblewrap_arguments
from overnight_worker.sandbox.http_request import parse_head, pass_body
from overnight_worker.sandbox.memory_group import V1, V2, find_parents
from overnight_worker.sandbox.proxy import HostRefused, Proxy, connect_public, is_allowed
from overnight_worker.sandbox.root_layout import RootLayout, root_layout
from overnight_worker.sandbox.sandbox_user import FIRST_USER, NOBODY, unprivileged_user

SPEC = SandboxSpec(argv=("true",), workspace=Path("/w"))


def arguments(layout: RootLayout) -> list[str]:
    files = {path: number for number, path in enumerate(layout.files, start=20)}
    return bubblewrap_arguments(layout, workspace="/w", seccomp=9, files=files)


def test_bubblewrap_isolates_everything_and_drops_all_capabilities() -> None:
    words = arguments(root_layout(SPEC))

    for kind in ("user", "pid", "ipc", "uts", "net"):
        assert f"--unshare-{kind}" in words
    assert {"--disable-userns", "--die-with-parent", "--new-session", "--as-pid-1"} <= {*words}
    assert words[words.index("--cap-drop") + 1] == "ALL"
    assert words[words.index("--seccomp") + 1] == "9"


def test_only_the_workspace_is_mounted_writable_from_the_host() -> None:
    words = arguments(root_layout(SPEC))

    assert words.count("--bind") == 1
    assert words[words.index("--bind") :][:3] == ["--bind", "/w", "/workspace"]
    assert not {"--dev-bind", "--bind-try", "--setenv", "--share-net"} & {*words}
    remounted = [words[at + 1] for at, word in enumerate(words) if word == "--remount-ro"]
    assert remounted == ["/proc", "/dev", "/"]


def test_the_root_has_no_directory_in_which_sockets_are() -> None:
    targets = {bind.target for bind in root_layout(SPEC).binds}

    assert "/usr" in targets
    assert not targets & {"/", "/run", "/var", "/home", "/tmp", "/etc", "/root", "/sys", "/proc"}


def test_mounts_that_are_asked_for_come_last_and_by_their_real_path(tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("")
    (tmp_path / "link").symlink_to("tool")
    mount = ReadOnlyMount(tmp_path / "link", "/opt/tool")

    layout = root_layout(
        SandboxSpec(argv=("true",), workspace=Path("/w"), read_only_mounts=(mount,))
    )

    assert layout.binds[-1] == (str((tmp_path / "tool").resolve()), "/opt/tool")


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="processes is 0: a limit of a sandbox is at least 1"):
        SandboxLimits(processes=0)


@pytest.mark.parametrize("target", ["/", "/proc/x", "opt", "/opt/../etc", "/workspace/a", "/tmp"])
def test_nothing_is_mounted_where_a_sandbox_has_its_own(target: str) -> None:
    with pytest.raises(ValueError, match="a target is an absolute path outside"):
        ReadOnlyMount(Path("/opt"), target)


def test_a_specification_without_a_command_is_refused() -> None:
    with pytest.raises(ValueError, match="argv is empty"):
        SandboxSpec(argv=(), workspace=Path("/w"))


@pytest.mark.parametrize(
    ("uid_map", "user"),
    [
        ("0 0 4294967295", range(FIRST_USER, FIRST_USER + 500)),
        ("0 100000 65536", range(FIRST_USER, FIRST_USER + 500)),
        ("0 1000 1\n65534 100000 1", [NOBODY]),
    ],
)
def test_a_root_worker_drops_to_a_user_that_its_namespace_has(
    uid_map: str, user: list[int]
) -> None:
    assert unprivileged_user(uid_map) in user


def test_a_root_worker_without_another_user_makes_no_sandbox() -> None:
    with pytest.raises(NoSandbox, match="no other user") as refusal:
        unprivileged_user("0 1000 1")

    assert "run the worker as an ordinary user" in refusal.value.remedy


def test_the_group_of_v1_is_found_below_the_mount() -> None:
    own = "9:pids:/a\n4:memory:/jobs/b\n0::/\n"
    mounts = (
        "30 20 0:26 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
        "31 20 0:27 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids\n"
        "32 20 0:28 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
    )

    assert find_parents(own, mounts) == [
        (Path("/sys/fs/cgroup/memory/jobs/b"), V1),
        (Path("/sys/fs/cgroup/unified"), V2),
    ]


def test_the_group_of_a_container_is_seen_from_its_own_root() -> None:
    own = "4:memory:/docker/abc\n"
    mounts = "30 20 0:26 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"

    assert find_parents(own, mounts) == [(Path("/sys/fs/cgroup/memory"), V1)]


def test_the_group_above_is_tried_with_v2() -> None:
    own = "0::/system.slice/overnight.service/worker\n"
    mounts = "32 20 0:28 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n"
    service = Path("/sys/fs/cgroup/system.slice/overnight.service")

    assert find_parents(own, mounts) == [(service / "worker", V2), (service, V2)]


@pytest.mark.parametrize(
    ("host", "port", "allowed"),
    [
        ("api.example.com", 443, True),
        ("API.Example.com.", 80, True),
        ("api.example.com", 22, False),
        ("example.com", 443, False),
        ("evil-api.example.com", 443, False),
        ("api.example.com.evil.org", 443, False),
        ("git.example.com", 2222, True),
        ("git.example.com", 443, False),
    ],
)
def test_a_host_is_allowed_by_its_exact_name(host: str, port: int, *, allowed: bool) -> None:
    policy = NetworkPolicy(("api.example.com", "git.example.com:2222"))

    assert is_allowed(policy, host, port) == allowed


def test_a_request_is_passed_on_with_the_host_that_was_checked() -> None:
    lines = (b"GET http://a.example:8080/x?y=1 HTTP/1.1", b"Host: b.example", b"A: b")
    head = b"\r\n".join([*lines, b"Proxy-Connection: keep-alive"])

    request = parse_head(head)

    assert (request.method, request.host, request.port) == ("GET", "a.example", 8080)
    assert request.head == (
        b"GET /x?y=1 HTTP/1.1\r\nHost: a.example:8080\r\nA: b\r\nConnection: close\r\n\r\n"
    )


@pytest.mark.parametrize(
    "lines",
    [
        b"A: b\nHost: c",
        b"A: b\rHost: c",
        b"\nA: b",
        b"A : b",
        b" A: b",
        b"A: b\r\n folded",
        b"A",
        b": b",
        b"A: \0",
        b"Content-Length: 1\r\nContent-Length: 1",
        b"Content-Length: 1, 1",
        b"Content-Length: +1",
        b"Content-Length: 1\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: gzip, chunked",
        b"transfer-encoding: chunked\r\nTransfer-Encoding: identity",
    ],
)
def test_a_head_with_more_than_one_meaning_is_refused(lines: bytes) -> None:
    parse_head(b"GET http://a.example/ HTTP/1.1\r\nA: b")

    with pytest.raises(ValueError, match="a request with"):
        parse_head(b"GET http://a.example/ HTTP/1.1\r\n" + lines)


@pytest.mark.parametrize("version", [b"HTTP/2", b"HTTP/1.2", b"HTTP/0.9", b"http/1.1", b""])
def test_an_unknown_version_of_http_is_refused(version: bytes) -> None:
    with pytest.raises(ValueError, match="a request that begins with"):
        parse_head(b"GET http://a.example/ " + version)


def passed(head_lines: bytes, body: bytes, size: int) -> bytes:
    """Return what of a body is passed on, when it arrives in pieces of a size."""
    request = parse_head(b"POST http://a.example/ HTTP/1.1\r\n" + head_lines)
    pieces = iter([body[start : start + size] for start in range(0, len(body), size)])
    sent: list[bytes] = []
    pass_body(request, next(pieces, b""), lambda: next(pieces, b""), sent.append)
    return b"".join(sent)


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_only_the_body_of_the_first_request_is_passed_on(size: int) -> None:
    second = b"GET / HTTP/1.1\r\nHost: b.example\r\n\r\n"
    chunks = b"3;x=y\r\nabc\r\n0A\r\n0123456789\r\n0\r\nTrailer: 1\r\n\r\n"

    assert passed(b"A: b", second, size) == b""
    assert passed(b"Content-Length: 5", b"12345" + second, size) == b"12345"
    assert passed(b"Transfer-Encoding: chunked", chunks + second, size) == (
        b"3\r\nabc\r\na\r\n0123456789\r\n0\r\n\r\n"
    )


@pytest.mark.parametrize(
    "body", [b"4\r\nabc", b"3\nabc\r\n", b"x\r\n", b"2\r\nabc\r\n0\r\n\r\n", b"-1\r\n", b"9" * 9000]
)
def test_chunks_with_more_than_one_meaning_are_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"a (body|chunk|line of a body) "):
        passed(b"Transfer-Encoding: chunked", body, 1000)


@pytest.mark.parametrize(
    "head",
    [
        b"GET /x HTTP/1.1",
        b"GET ftp://a/ HTTP/1.1",
        b"nonsense",
        b"CONNECT a HTTP/1.1",
        b"CONNECT a:4_43 HTTP/1.1",
        b"CONNECT :443 HTTP/1.1",
    ],
)
def test_a_request_that_names_no_host_is_refused(head: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_head(head)


def test_one_connection_without_a_tunnel_serves_one_request() -> None:
    """The second request names a host that the server might serve too."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = socket.create_server(("127.0.0.1", 0))
    address, server_address = listener.getsockname(), server.getsockname()
    running = Proxy(
        listener,
        NetworkPolicy(("agent.example",)),
        lambda _sentence: None,
        lambda _host, _port: socket.create_connection(server_address, 10),
    )
    first = b"POST http://agent.example/ HTTP/1.1\r\nContent-Length: 2\r\n\r\nab"
    with server, socket.create_connection(address, 10) as client:
        client.sendall(first + b"GET / HTTP/1.1\r\nHost: other.example\r\n\r\n")
        client.shutdown(socket.SHUT_WR)
        accepted, _ = server.accept()
        with accepted, accepted.makefile("rb") as stream:
            received = stream.read()
            accepted.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        answer = client.recv(1000)
    running.close()

    assert received.endswith(b"\r\n\r\nab")
    assert b"other.example" not in received
    assert answer.startswith(b"HTTP/1.1 200 OK")


def test_a_request_of_an_odd_form_gets_an_answer_that_says_so() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    reports: list[str] = []
    running = Proxy(listener, NetworkPolicy(("agent.example",)), reports.append)
    with socket.create_connection(address, 10) as client:
        client.sendall(b"GET http://agent.example/ HTTP/1.1\r\nA : b\r\n\r\n")
        answer = client.makefile("rb").read()
    running.close()

    assert answer.startswith(b"HTTP/1.1 400 Bad Request")
    assert answer.endswith(b"a request with the line 'A : b'\n")
    assert reports == ["a connection of the sandbox failed: a request with the line 'A : b'"]


def test_the_machine_of_the_worker_is_refused_by_its_public_address_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proxy, "is_public", lambda _: True)

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(HostRefused, match="the machine of the worker"):
            connect_public("127.0.0.1", port)


def test_a_command_that_connects_without_end_does_not_fill_the_log_of_its_worker() -> None:
    reports: list[str] = []
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    running = Proxy(listener, NetworkPolicy(("agent.example",)), reports.append)

    for number in range(proxy.MAX_REPORTS + 20):
        with socket.create_connection(address) as client:
            client.sendall(f"CONNECT {'x' * 20_000}{number}:443 HTTP/1.1\r\n\r\n".encode())
            assert b"403 Forbidden" in client.recv(1000)
    running.close()

    assert len(reports) == proxy.MAX_REPORTS + 1
    assert max(map(len, reports)) <= proxy.MAX_REPORT
    assert reports[-1] == "further connections of the sandbox are not logged"


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        ("[Errno 2] No such file or directory: 'bwrap'", remedies.INSTALL),
        ("Can't mount proc on /newroot/proc: Operation not permitted", remedies.MASKED_PROC),
        ("unshare: Operation not permitted", remedies.CONTAINER),
        ("No permissions to create new namespace", remedies.CONTAINER),
        ("Can't find source path /srv/w: Permission denied", remedies.UNREADABLE),
        ("something else", remedies.UNKNOWN),
    ],
)
def test_a_known_cause_has_a_remedy(
    monkeypatch: pytest.MonkeyPatch, message: str, remedy: str
) -> None:
    monkeypatch.setattr(remedies, "KERNEL_SETTINGS", {})

    assert remedies.remedy_for(message) == remedy


def test_a_setting_of_the_kernel_that_forbids_namespaces_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    setting = tmp_path / "apparmor"
    setting.write_text("1\n")
    monkeypatch.setattr(remedies, "KERNEL_SETTINGS", {setting: ("1", "AppArmor forbids")})

    assert remedies.remedy_for("loopback: Failed RTM_NEWADDR") == "AppArmor forbids"
    assert remedies.remedy_for("setting up uid map: Permission denied") == "AppArmor forbids"
