"""The system calls that a sandbox refuses, as a seccomp filter for the kernel.

The filter is a deny-list. Namespaces, mounts and the empty set of capabilities hold a command even
without it; the filter takes away what they do not cover (the session keyring, tracing) and what
has had most errors in the kernel. It is assembled here, because no library is needed for it.
"""

import errno
import platform
import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

# Operations of the kernel's filter machine (linux/bpf_common.h).
LOAD_WORD: Final = 0x20
JUMP_IF_EQUAL: Final = 0x15
JUMP_IF_AT_LEAST: Final = 0x35
JUMP_IF_ANY_BIT: Final = 0x45
RETURN: Final = 0x06
# What a filter may answer (linux/seccomp.h).
ALLOW: Final = 0x7FFF0000
KILL_PROCESS: Final = 0x80000000
FAIL: Final = 0x00050000
# Where the kernel puts what a filter reads (struct seccomp_data).
CALL_OFFSET: Final = 0
ARCHITECTURE_OFFSET: Final = 4
ARGUMENT_OFFSETS: Final = (16, 24)
# The numbers of x32, a second interface of x86_64, begin here.
X32_CALLS: Final = 0x40000000
# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET.
NEW_NAMESPACES: Final = 0x7E020000
# AF_UNIX, AF_INET, AF_INET6 and AF_NETLINK. Others reach the host past the network namespace
# (AF_VSOCK) or are rarely used and often broken.
ALLOWED_FAMILIES: Final = (1, 2, 10, 16)
IOPRIO_WHO_PROCESS: Final = 1


class Architecture(NamedTuple):
    """A processor: what the kernel calls it (linux/audit.h), and the column of its numbers."""

    audit_number: int
    column: int


ARCHITECTURES: Final = {
    "x86_64": Architecture(0xC000003E, 0),
    "aarch64": Architecture(0xC00000B7, 1),
}
# Refused with EPERM: the numbers on x86_64 and aarch64, None where there is no such call.
DENIED: Final[dict[str, tuple[int, int | None]]] = {
    # Look into other processes.
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    # Keyrings, which no namespace separates.
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    # Large interfaces of the kernel that a command does not need.
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "userfaultfd": (323, 282),
    "memfd_secret": (447, 447),
    "fanotify_init": (300, 262),
    "lookup_dcookie": (212, 18),
    "nfsservctl": (180, 42),
    # Mounts and namespaces.
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_by_handle_at": (304, 265),
    # The machine itself.
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "syslog": (103, 116),
    "vhangup": (153, 58),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "iopl": (172, None),
    "ioperm": (173, None),
    # Weaken what protects a process, or move its memory.
    "personality": (135, 92),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    "ustat": (136, None),
    "sysfs": (139, None),
    "move_pages": (279, 239),
    "mbind": (237, 235),
    "set_mempolicy": (238, 237),
    "set_mempolicy_home_node": (450, 450),
    "migrate_pages": (256, 238),
}
# Refused only with some arguments.
CLONE: Final = (56, 220)
CLONE3: Final = (435, 435)
SOCKET: Final = (41, 198)
MEMFD_CREATE: Final = (319, 279)
# Calls that may name another process by their arguments; the values are those that mean "myself".
# Every process of a sandbox has one user, so that a command could otherwise slow down process 1,
# which has to end it.
OWN_PROCESS_ONLY: Final[dict[str, tuple[tuple[int, int], tuple[int, ...]]]] = {
    "sched_setscheduler": ((144, 119), (0,)),
    "sched_setparam": ((142, 118), (0,)),
    "sched_setattr": ((314, 274), (0,)),
    "prlimit64": ((302, 261), (0,)),
    "setpriority": ((141, 140), (0, 0)),
    "ioprio_set": ((251, 30), (IOPRIO_WHO_PROCESS, 0)),
}


class Instruction(NamedTuple):
    """One instruction: if it is a comparison, how many to skip when it holds and when not."""

    operation: int
    if_true: int
    if_false: int
    value: int


class UnknownArchitecture(Exception):
    """There is no table of system calls for this processor."""


def build_filter(*, allow_memory_files: bool, machine: str | None = None) -> bytes:
    """Return the filter for this processor, as the kernel takes it.

    Without `allow_memory_files`, `memfd_create` is refused: what is kept in such files is memory
    that only a cgroup sees. Raise UnknownArchitecture for processors without a table.
    """
    name = machine or platform.machine()
    if name not in ARCHITECTURES:
        supported = " and ".join(ARCHITECTURES)
        raise UnknownArchitecture(f"no table of system calls for {name}; there are {supported}")
    program = instructions(ARCHITECTURES[name], allow_memory_files=allow_memory_files)
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in program)


def instructions(
    architecture: Architecture, *, allow_memory_files: bool
) -> tuple[Instruction, ...]:
    """Return the filter as instructions."""
    column = architecture.column
    program = [
        Instruction(LOAD_WORD, 0, 0, ARCHITECTURE_OFFSET),
        # A process may call the kernel with the numbers of another architecture.
        Instruction(JUMP_IF_EQUAL, 1, 0, architecture.audit_number),
        _answer(KILL_PROCESS),
        Instruction(LOAD_WORD, 0, 0, CALL_OFFSET),
        Instruction(JUMP_IF_AT_LEAST, 0, 1, X32_CALLS),
        _answer(KILL_PROCESS),
        # The C library falls back to clone, whose flags a filter can read.
        *_on_call(CLONE3[column], [_answer(FAIL | errno.ENOSYS)]),
        *_on_call(CLONE[column], _refuse_namespaces()),
        *_on_call(SOCKET[column], _allow_values(0, ALLOWED_FAMILIES, errno.EAFNOSUPPORT)),
    ]
    if not allow_memory_files:
        program += _on_call(MEMFD_CREATE[column], [_answer(FAIL | errno.ENOSYS)])
    for numbers, own_values in OWN_PROCESS_ONLY.values():
        checks: list[Instruction] = []
        for position, value in enumerate(own_values):
            checks += _allow_values(position, (value,), errno.EPERM)
        program += _on_call(numbers[column], checks)
    for call in DENIED.values():
        if (number := call[column]) is not None:
            program += _on_call(number, [_answer(FAIL | errno.EPERM)])
    return (*program, _answer(ALLOW))


def _answer(value: int) -> Instruction:
    return Instruction(RETURN, 0, 0, value)


def _on_call(number: int, body: Iterable[Instruction]) -> list[Instruction]:
    """Return instructions that execute `body` for one call, and load the call again behind it.

    A body of one instruction is an answer: nothing is executed behind it.
    """
    inner = [*body]
    if len(inner) > 1:
        inner.append(Instruction(LOAD_WORD, 0, 0, CALL_OFFSET))
    return [Instruction(JUMP_IF_EQUAL, 0, len(inner), number), *inner]


def _refuse_namespaces() -> list[Instruction]:
    return [
        Instruction(LOAD_WORD, 0, 0, ARGUMENT_OFFSETS[0]),
        Instruction(JUMP_IF_ANY_BIT, 0, 1, NEW_NAMESPACES),
        _answer(FAIL | errno.EPERM),
    ]


def _allow_values(position: int, allowed: tuple[int, ...], error: int) -> list[Instruction]:
    """Return instructions that fail unless an argument has one of the values.

    Only the lower half of an argument is read: the kernel takes these arguments as 32-bit numbers.
    """
    comparisons = [
        Instruction(JUMP_IF_EQUAL, len(allowed) - index, 0, value)
        for index, value in enumerate(allowed)
    ]
    return [
        Instruction(LOAD_WORD, 0, 0, ARGUMENT_OFFSETS[position]),
        *comparisons,
        _answer(FAIL | error),
    ]
