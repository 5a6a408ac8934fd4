"""Validates the output of a run before its task completes; the task is `validating` meanwhile.

Patterns and schemas may take for ever, and would hold Python's lock: they are used by a program in
a sandbox with limits, never in this process. The tests of a task run in the workspace of its run,
when that is dead, with the network off. Claim, lease and time limit of the run go on: a request to
stop the run ends its validation too.
"""

import json
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from overnight import output_check
from overnight.handlers.control_exceptions import Fail
from overnight.handlers.outcome import HandlerReturned, UnstorableOutput, storable
from overnight_server.domain.claims import Run
from overnight_server.domain.execution import Execution
from overnight_server.domain.results import Raised, Result
from overnight_server.domain.validation import INVALID_OUTPUT, SIZE, TESTS, validators_of
from overnight_server.mask import mask_secrets
from overnight_worker.program_in_sandbox import ProgramEnd, run_program, sandbox_limits
from overnight_worker.run_context import RunContext
from overnight_worker.run_directory import workspace
from overnight_worker.runners.run_connection import RunConnection
from overnight_worker.runners.runner import PreparedRun
from overnight_worker.sandbox import (
    NoSandbox,
    ReadOnlyMount,
    SandboxEnd,
    SandboxKind,
    SandboxLimits,
    SandboxSpec,
    choose_sandbox_kind,
)
from overnight_worker.sandbox.interpreter import ISOLATED, inside_interpreter
from overnight_worker.sandbox.probe import Policy

# A run that must stop for one of these may use its grace to have its output validated: an output
# that was returned all the same counts.
GRACE_STOPS: Final = frozenset({"shutdown", "window_closed", "budget"})
CHECK_CPU_SECONDS: Final = 10
CHECK_SECONDS: Final = 60.0
CHECK_LIMITS: Final = SandboxLimits(
    memory_mb=512, processes=8, workspace_mb=16, tmp_mb=16, cpu_seconds=CHECK_CPU_SECONDS
)
MAX_MESSAGE: Final = 2000
# How much of what failed tests wrote is kept with the attempt.
TAIL_BYTES: Final = 4000
PROGRAM: Final = Path(output_check.__file__).read_text()


class OutputRejected(Exception):
    """A validator rejected the output of a run; the task's retry policy decides what follows."""

    error_class = INVALID_OUTPUT

    def __init__(self, validator: str, message: str, detail: str = "") -> None:
        super().__init__(f"{validator}: {message}"[:MAX_MESSAGE])
        self.validator = validator
        self.run_detail = detail
        self.output: object = None

    def with_output(self, result: Result) -> Result:
        """Return the result of the run with its rejected output, which a person may accept."""
        if not isinstance(result, Raised):
            return result
        returned = HandlerReturned(mask_secrets(self.output))
        rejected = {
            "output": returned.output,
            "summary": returned.summary,
            "files_changed": list(returned.files_changed) or None,
        }
        return replace(result, validator=self.validator, rejected=rejected)


@dataclass(frozen=True)
class OutputValidation:
    """The validators of one run, and the sandbox in which they run."""

    validators: list[dict[str, Any]]
    sandbox_kind: SandboxKind = SandboxKind.NONE

    @classmethod
    def of(cls, run: Run, policy: Policy) -> "OutputValidation":
        """Return the validation of a run; raise Fail if it needs a sandbox and there is none.

        Called before the run, so that no work is done whose result cannot be validated.
        """
        validators = validators_of(run.spec)
        if all(each["method"] == SIZE for each in validators):
            return cls(validators)
        try:
            return cls(validators, choose_sandbox_kind(policy))
        except NoSandbox as error:
            raise _cannot_validate(error) from error

    def check(
        self, prepared: PreparedRun, connection: RunConnection, reported: object, output: object
    ) -> None:
        """Raise OutputRejected if a validator rejects what a run has reported.

        `output` is what the task gets: the reported output, with the changed files of a command.
        """
        context = prepared.context
        if not self.validators or context.stop_reason not in {None, *GRACE_STOPS}:
            return
        try:
            value = storable(reported)
            stored_output = storable(output)
        except UnstorableOutput:
            return  # the run fails for that reason
        connection.begin_validation()
        for validator in self.validators:
            try:
                self._run(validator, prepared, value)
            except OutputRejected as rejection:
                rejection.output = stored_output
                raise

    def _run(self, validator: Mapping[str, Any], prepared: PreparedRun, value: object) -> None:
        context = prepared.context
        match validator["method"]:
            case "size":
                _check_size(validator, value)
            case "test-pass":
                self._run_tests(validator, prepared, value)
            case method:
                problem = self._problem({**validator, "output": value}, context)
                if problem:
                    raise OutputRejected(method, problem)

    def _problem(self, request: Mapping[str, Any], context: RunContext) -> str:
        """Return what the checking program says about an output; empty if it is right."""
        interpreter = inside_interpreter()
        prefix = interpreter.prefix
        mounts = () if prefix is None else (ReadOnlyMount(Path(prefix), prefix),)
        with workspace() as directory:
            spec = SandboxSpec(
                argv=(interpreter.path, *ISOLATED, "-c", PROGRAM),
                workspace=directory,
                limits=CHECK_LIMITS,
                stdin=json.dumps(request).encode(),
                read_only_mounts=mounts,
            )
            program = self._program(spec, context, seconds=CHECK_SECONDS)
        if program.has_succeeded:
            return program.stdout.decode(errors="replace")
        end = program.end
        if end is not None and end.signal in {signal.SIGKILL, signal.SIGXCPU}:
            # The kernel ends it at its limit; nobody else does.
            return f"the check took more than {CHECK_CPU_SECONDS} s of CPU time"
        return f"the output could not be checked: {_failure(program, CHECK_SECONDS)}"

    def _run_tests(
        self, validator: Mapping[str, Any], prepared: PreparedRun, value: object
    ) -> None:
        """Run the tests of a task in the workspace of its run; the output is on stdin."""
        if prepared.workspace is None or prepared.run.execution is None:
            raise Fail("test-pass needs a workspace", error_class="invalid_input")
        execution, context = Execution.of(prepared.run.execution), prepared.context
        seconds = float(validator.get("timeout_seconds") or context.seconds_left)
        spec = SandboxSpec(
            argv=tuple(validator["argv"]),
            workspace=prepared.workspace,
            env={"OVERNIGHT_TASK_ID": context.task_id},
            limits=sandbox_limits(execution.limits, prepared.run.granted_seconds),
            read_only_mounts=tuple(
                ReadOnlyMount(Path(source), target) for source, target in execution.mounts
            ),
            stdin=json.dumps(value).encode(),
        )
        context.log("the tests begin", argv=list(spec.argv))
        program = self._program(spec, context, seconds=seconds, log=context.write_log)
        if not program.has_succeeded:
            written = program.stdout_tail + program.stderr_tail
            detail = written[-TAIL_BYTES:].decode(errors="replace")
            raise OutputRejected(TESTS, _failure(program, seconds), detail)

    def _program(
        self,
        spec: SandboxSpec,
        context: RunContext,
        *,
        seconds: float,
        log: Callable[[str, bytes], None] | None = None,
    ) -> ProgramEnd:
        try:
            return run_program(
                spec,
                self.sandbox_kind,
                context,
                seconds=seconds,
                ignored_stops=GRACE_STOPS,
                log=log,
            )
        except NoSandbox as error:
            raise _cannot_validate(error) from error


def _cannot_validate(error: NoSandbox) -> Fail:
    """Return the failure of a run whose output needs a sandbox that this machine cannot make."""
    message = f"the output cannot be validated: {error}; {error.remedy}"
    return Fail(message, error_class=error.error_class)


def _check_size(validator: Mapping[str, Any], value: object) -> None:
    size = len(json.dumps(value, ensure_ascii=False).encode())
    most, least = validator["max_bytes"], validator.get("min_bytes", 0)
    if size > most:
        raise OutputRejected(SIZE, f"the output takes {size} bytes as JSON, more than {most}")
    if size < least:
        raise OutputRejected(SIZE, f"the output takes {size} bytes as JSON, less than {least}")


def _failure(program: ProgramEnd, seconds: float) -> str:
    """Return how a program failed, with the last line that it wrote to stderr."""
    text = _end_text(program.end, seconds)
    return f"{text}: {program.last_error}" if program.last_error else text


def _end_text(end: SandboxEnd | None, seconds: float) -> str:
    if end is None:
        return f"it did not end within {seconds:g} s"
    if end.cause == "signal":
        return f"it was ended by signal {end.signal}"
    if end.cause == "exit":
        return f"it ended with exit code {end.exit_code}"
    return end.detail or f"its sandbox ended: {end.cause}"
