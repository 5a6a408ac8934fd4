"""The seccomp filter, executed as the kernel executes it."""

import errno
import struct

import pytest

from overnight_worker.sandbox import seccomp
from overnight_worker.sandbox.seccomp import (
    ALLOW,
    ARCHITECTURES,
    DENIED,
    FAIL,
    KILL_PROCESS,
    MEMFD_CREATE,
    OWN_PROCESS_ONLY,
    UnknownArchitecture,
    build_filter,
)

MACHINES = sorted(ARCHITECTURES)
EPERM = FAIL | errno.EPERM


def judge(
    program: bytes, call: int, *arguments: int, architecture: int | None = None, machine: str
) -> int:
    """Execute a filter for one system call; return its answer."""
    audit = ARCHITECTURES[machine].audit_number if architecture is None else architecture
    padded = [*arguments, 0, 0, 0, 0, 0, 0][:6]
    data = struct.pack("<iIQ6Q", call, audit, 0, *padded)
    lines = [struct.unpack_from("<HBBI", program, at) for at in range(0, len(program), 8)]
    accumulator, at = 0, 0
    while True:
        operation, if_true, if_false, value = lines[at]
        at += 1
        if operation == seccomp.RETURN:
            return int(value)
        if operation == seccomp.LOAD_WORD:
            accumulator = struct.unpack_from("<I", data, value)[0]
            continue
        holds = {
            seccomp.JUMP_IF_EQUAL: accumulator == value,
            seccomp.JUMP_IF_AT_LEAST: accumulator >= value,
            seccomp.JUMP_IF_ANY_BIT: bool(accumulator & value),
        }[operation]
        at += if_true if holds else if_false


def column(machine: str) -> int:
    return ARCHITECTURES[machine].column


@pytest.mark.parametrize("machine", MACHINES)
def test_every_denied_call_is_refused_and_its_neighbours_are_not(machine: str) -> None:
    program = build_filter(allow_memory_files=True, machine=machine)
    denied = {call[column(machine)] for call in DENIED.values()} - {None}
    conditional = {
        number[column(machine)] for number in (seccomp.CLONE, seccomp.CLONE3, seccomp.SOCKET)
    } | {numbers[column(machine)] for numbers, _ in OWN_PROCESS_ONLY.values()}

    answers = {call: judge(program, call, machine=machine) for call in range(512)}

    assert {call for call, answer in answers.items() if answer == EPERM} - conditional == denied
    assert {answers[call] for call in range(512) if call not in denied | conditional} == {ALLOW}


@pytest.mark.parametrize("machine", MACHINES)
def test_a_process_may_not_be_cloned_into_namespaces(machine: str) -> None:
    program = build_filter(allow_memory_files=True, machine=machine)
    clone = seccomp.CLONE[column(machine)]

    assert judge(program, clone, 17, machine=machine) == ALLOW
    assert judge(program, clone, 0x003D0F00, machine=machine) == ALLOW
    for flag in (0x10000000, 0x20000000, 0x40000000, 0x20000, 0x8000000, 0x4000000, 0x2000000):
        assert judge(program, clone, flag | 17, machine=machine) == EPERM
    answer = judge(program, seccomp.CLONE3[column(machine)], machine=machine)
    assert answer == FAIL | errno.ENOSYS


@pytest.mark.parametrize("machine", MACHINES)
def test_sockets_have_four_families(machine: str) -> None:
    program = build_filter(allow_memory_files=True, machine=machine)
    socket = seccomp.SOCKET[column(machine)]

    allowed = {
        family for family in range(64) if judge(program, socket, family, machine=machine) == ALLOW
    }

    assert allowed == {1, 2, 10, 16}
    assert judge(program, socket, 40, machine=machine) == FAIL | errno.EAFNOSUPPORT


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", sorted(OWN_PROCESS_ONLY))
def test_a_process_may_change_the_priority_of_itself_only(machine: str, name: str) -> None:
    program = build_filter(allow_memory_files=True, machine=machine)
    numbers, own = OWN_PROCESS_ONLY[name]
    call = numbers[column(machine)]

    assert judge(program, call, *own, machine=machine) == ALLOW
    for position in range(len(own)):
        other = [*own]
        other[position] += 1
        assert judge(program, call, *other, machine=machine) == EPERM
        # The kernel ignores the upper half, so that it must not hide the lower one.
        other[position] = own[position] | 1 << 32
        assert judge(program, call, *other, machine=machine) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_files_in_memory_are_refused_where_nobody_counts_them(machine: str) -> None:
    counted = build_filter(allow_memory_files=True, machine=machine)
    uncounted = build_filter(allow_memory_files=False, machine=machine)
    call = MEMFD_CREATE[column(machine)]

    assert judge(counted, call, machine=machine) == ALLOW
    assert judge(uncounted, call, machine=machine) == FAIL | errno.ENOSYS


def test_calls_of_another_architecture_end_the_process() -> None:
    program = build_filter(allow_memory_files=True, machine="x86_64")
    i386 = 0x40000003

    assert judge(program, 1, architecture=i386, machine="x86_64") == KILL_PROCESS
    assert judge(program, 0x40000001, machine="x86_64") == KILL_PROCESS


def test_a_processor_without_a_table_is_named() -> None:
    with pytest.raises(UnknownArchitecture, match="riscv64; there are x86_64 and aarch64"):
        build_filter(allow_memory_files=True, machine="riscv64")
