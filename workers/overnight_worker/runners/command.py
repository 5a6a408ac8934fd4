"""Runs a command in a sandbox: argv without a shell, prompt on stdin, events on descriptor 3."""

import json
import os
import threading
from pathlib import Path
from typing import Final

from overnight.handlers.control_exceptions import Fail
from overnight_server.domain.execution import MODEL, Execution
from overnight_server.domain.ids import show_task
from overnight_server.fault_points import fault
from overnight_worker.connection_report import connection_report
from overnight_worker.identity import WORKER_ID
from overnight_worker.pool_guard import POOL_GUARD
from overnight_worker.program_in_sandbox import sandbox_limits
from overnight_worker.run_context import RunContext
from overnight_worker.runners.command_events import CommandEvents
from overnight_worker.runners.command_output import CommandOutput
from overnight_worker.runners.exit_codes import check_end
from overnight_worker.runners.run_connection import RunConnection
from overnight_worker.runners.runner import PreparedRun
from overnight_worker.sandbox import (
    NetworkPolicy,
    NoSandbox,
    ReadOnlyMount,
    Sandbox,
    SandboxEnd,
    SandboxKind,
    SandboxSpec,
    start_sandbox,
)
from overnight_worker.sandbox.spec import WORKSPACE

GIGABYTE_MB: Final = 1024
# The variable that tells a command, as JSON, why an earlier output of its task was rejected.
FEEDBACK_VARIABLE: Final = "OVERNIGHT_FEEDBACK"


class CommandRunner:
    """Runs commands in sandboxes of one kind."""

    def __init__(self, sandbox_kind: SandboxKind) -> None:
        self._sandbox_kind = sandbox_kind
        self._runs: dict[str, CommandRun] = {}

    def spawn(self, prepared: PreparedRun, connection: RunConnection) -> str:
        """Start the command in its sandbox; the run is recorded before."""
        execution = Execution.of(prepared.run.execution or {})
        check_mounts(execution)
        spec = sandbox_spec(execution, prepared, self._sandbox_kind)
        external_id = f"{WORKER_ID}/{prepared.context.idempotency_key}"
        connection.note_id(external_id, sandbox=describe_sandbox(self._sandbox_kind, execution))
        fault("sandbox.before_spawn")
        try:
            report = connection_report(connection.context)
            sandbox = start_sandbox(spec, self._sandbox_kind, report=report)
        except NoSandbox as error:
            raise Fail(f"{error}; {error.remedy}", error_class=error.error_class) from error
        POOL_GUARD.leave_out(sandbox.pid)
        fault("sandbox.after_spawn")
        run = self._runs[external_id] = CommandRun(sandbox, connection)
        watch = threading.Thread(
            target=self._watch, args=(external_id, run), name="run command", daemon=True
        )
        try:
            watch.start()
        except RuntimeError:  # Linux gives this user no further thread
            del self._runs[external_id]
            sandbox.close()
            raise
        return external_id

    def terminate(self, external_id: str, grace: float) -> None:
        """Send SIGTERM to all processes of the sandbox, and kill them all after the grace."""
        run = self._runs.get(external_id)
        if run is None:
            return
        run.sandbox.terminate()
        if not run.is_dead.wait(grace):
            run.sandbox.kill()
            run.is_dead.wait()

    def _watch(self, external_id: str, run: "CommandRun") -> None:
        """Wait for the end of a command, and report how it ended, whatever fails here."""
        try:
            output = run.output_of(self._wait(external_id, run))
        except BaseException as error:  # noqa: BLE001 - this is how the run ended
            vars(error)["run_detail"] = run.stderr.text
            run.connection.end(raised=error)
        else:
            run.connection.end(output)

    def _wait(self, external_id: str, run: "CommandRun") -> SandboxEnd:
        try:
            return run.wait()
        finally:
            self._runs.pop(external_id, None)
            run.sandbox.close()


class CommandRun:
    """A command that runs, and the readers of what it writes; `is_dead` is set when it has ended.

    Only the thread that watches it waits for its sandbox.
    """

    def __init__(self, sandbox: Sandbox, connection: RunConnection) -> None:
        self.sandbox = sandbox
        self.connection = connection
        self.is_dead = threading.Event()
        self.stderr = CommandOutput("stderr", connection.context)
        self._stdout = CommandOutput("stdout", connection.context)
        self._events = CommandEvents(connection.context)

    def wait(self) -> SandboxEnd:
        """Read what the command writes until all of its processes have ended; return its end.

        If this cannot be done, end the command and raise why.
        """
        readers: list[threading.Thread] = []
        try:
            for read, descriptor in (
                (self._events.read, self.sandbox.events),
                (self._stdout.read, self.sandbox.stdout),
                (self.stderr.read, self.sandbox.stderr),
            ):
                reader = threading.Thread(target=read, args=(descriptor,), daemon=True)
                reader.start()
                readers.append(reader)
            return self.sandbox.wait() or SandboxEnd("failed")
        finally:
            self.sandbox.kill()
            self.sandbox.wait()
            self.is_dead.set()
            for reader in readers:
                reader.join()

    def output_of(self, end: SandboxEnd) -> object:
        """Return the output of a command that succeeded; raise how it failed."""
        check_end(
            end,
            stop_reason=self.connection.context.stop_reason,
            last_line=self.stderr.last_line,
            has_result=self._events.has_result,
        )
        if self._events.has_result:
            return self._events.result
        return {"text": self._stdout.text, "summary": self._stdout.last_line}


def check_mounts(execution: Execution) -> None:
    """Raise Fail if a mount of the agent profile is missing: the agent is not installed here."""
    for source, _ in execution.mounts:
        if not os.path.exists(source):  # noqa: PTH110 - pathlib raises if it may not look there
            raise Fail(
                f"the agent profile {execution.agent} mounts {source}, which this worker's machine"
                " does not have; install the agent there, or change the profile",
                error_class="bad_command",
            )


def sandbox_spec(
    execution: Execution, prepared: PreparedRun, sandbox_kind: SandboxKind
) -> SandboxSpec:
    """Return what the sandbox of a run gets; its workspace and its input files were prepared."""
    if prepared.workspace is None or prepared.input_files is None:
        raise ValueError("a command needs a workspace and input files")
    files = prepared.input_files
    return SandboxSpec(
        argv=argv_of(execution, prepared),
        workspace=prepared.workspace,
        env={
            **(prepared.env or {}),
            **files.variables(sandbox_kind),
            **own_environment(prepared.context),
        },
        limits=sandbox_limits(execution.limits, prepared.run.granted_seconds),
        network=NetworkPolicy(execution.network),
        read_only_mounts=(
            *(ReadOnlyMount(Path(source), target) for source, target in execution.mounts),
            *files.mounts(),
        ),
        stdin=prompt_of(execution, prepared.context).encode(),
    )


def own_environment(context: RunContext) -> dict[str, str]:
    """Return the variables that the service gives every command."""
    feedback = context.feedback
    feedback_variable = {} if feedback is None else {FEEDBACK_VARIABLE: feedback.model_dump_json()}
    return {"OVERNIGHT_TASK_ID": context.task_id, **feedback_variable}


def prompt_of(execution: Execution, context: RunContext) -> str:
    """Return the prompt of a run: that of the task, else its title.

    An agent is told at the end why its last output was rejected; a command of the task itself
    reads exactly its prompt.
    """
    prompt, feedback = context.prompt or context.title, context.feedback
    if execution.agent is None or feedback is None:
        return prompt
    # As a JSON text: what an agent wrote is data, and must not look like instructions of ours.
    output = json.dumps(feedback.output, ensure_ascii=False)
    return (
        f"{prompt}\n\nThe output of an earlier attempt was rejected: {feedback.message}\n"
        f"That output was, as a JSON text: {output}\n"
    )


def argv_of(execution: Execution, prepared: PreparedRun) -> tuple[str, ...]:
    """Return the program and its arguments, with workspace, model, task and run filled in."""
    values = {
        "{workspace}": WORKSPACE,
        MODEL: model_of(execution, prepared),
        "{task_id}": show_task(prepared.run.claim.task_id),
        "{idempotency_key}": prepared.context.idempotency_key,
    }
    return tuple(_filled(argument, values) for argument in execution.argv)


def model_of(execution: Execution, prepared: PreparedRun) -> str:
    """Return the model of this attempt: the task's, else the first of the agent profile."""
    return prepared.context.model or next(iter(execution.models), "")


def describe_sandbox(sandbox_kind: SandboxKind, execution: Execution) -> str:
    """Return the sandbox of a run as its attempt shows it.

    >>> describe_sandbox(SandboxKind.BUBBLEWRAP, Execution(argv=("true",)))
    'bwrap, memory 2 GB, network off'
    """
    if sandbox_kind is SandboxKind.NONE:
        return "none: without protection"
    memory = execution.limits.memory_mb
    whole = memory % GIGABYTE_MB == 0
    amount = f"{memory // GIGABYTE_MB} GB" if whole else f"{memory} MB"
    network = ", ".join(execution.network) or "off"
    return f"{sandbox_kind}, memory {amount}, network {network}"


def _filled(argument: str, values: dict[str, str]) -> str:
    for placeholder, value in values.items():
        argument = argument.replace(placeholder, value)
    return argument
