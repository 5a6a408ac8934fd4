"""What is kept of the output of a program that runs in a sandbox to its end."""

import time

from overnight_worker.program_in_sandbox import MAX_OUTPUT_BYTES, TAIL_BYTES, run_program
from overnight_worker.run_context import RunContext
from overnight_worker.run_directory import workspace
from overnight_worker.sandbox import SandboxKind, SandboxSpec
from tests.support.sample_run import RUN

SECONDS = 60
# Each stream gets more than is kept of it.
SCRIPT = """
seq 300000; echo the last test failed
seq 300000 >&2; echo 1 of 2 tests failed >&2
exit 3
"""


def test_the_beginning_and_the_end_of_a_long_output_are_kept(sandbox_kind: SandboxKind) -> None:
    context = RunContext(RUN, deadline=time.monotonic() + SECONDS)
    with workspace() as directory:
        spec = SandboxSpec(argv=("sh", "-c", SCRIPT), workspace=directory)

        program = run_program(spec, sandbox_kind, context, seconds=SECONDS)

    assert program.end is not None
    assert program.end.exit_code == 3
    assert program.stdout.startswith(b"1\n2\n3\n")
    assert program.stdout_tail.endswith(b"299999\n300000\nthe last test failed\n")
    assert program.last_error == "1 of 2 tests failed"
    assert len(program.stdout) == MAX_OUTPUT_BYTES
    assert len(program.stdout_tail) == len(program.stderr_tail) == TAIL_BYTES


def test_a_program_may_write_any_number_of_events(sandbox_kind: SandboxKind) -> None:
    context = RunContext(RUN, deadline=time.monotonic() + SECONDS)
    script = 'yes \'{"event": "progress", "fraction": 0.5}\' | head -c 300000 >&3; echo done'
    with workspace() as directory:
        spec = SandboxSpec(argv=("sh", "-c", script), workspace=directory)

        program = run_program(spec, sandbox_kind, context, seconds=SECONDS / 4)

    assert (program.has_succeeded, program.stdout) == (True, b"done\n")
