"""Prepares a run, and clears up after it: secrets, environment, workspace and input files."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from overnight.trace_context import VARIABLE, current_traceparent
from overnight_server.domain.claims import Run
from overnight_server.domain.execution import Execution
from overnight_server.domain.ids import UserId
from overnight_worker.git_workspace import (
    BRANCH_PREFIX,
    Clone,
    Repository,
    clone,
)
from overnight_worker.input_files import write_input_files
from overnight_worker.program_in_sandbox import sandbox_limits
from overnight_worker.run_context import RunContext
from overnight_worker.run_directory import workspace
from overnight_worker.runners.runner import PreparedRun
from overnight_worker.sandbox.probe import choose_sandbox_kind
from overnight_worker.secrets import resolve
from overnight_worker.source_repository import check_allowed


@contextmanager
def prepared(
    run: Run, context: RunContext, repositories: tuple[str, ...] = ()
) -> Iterator[PreparedRun]:
    """Prepare a run; its workspace is removed at the end of the context.

    `repositories` are those that the operator allows. Raise SecretMissing if the worker lacks a
    secret that the task refers to, Fail if its repository cannot be cloned, and NoSandbox if there
    is none to clone it in.
    """
    # The owner of a command's task chooses what reads its payload.
    own_only = run.execution is not None
    context.payload = resolve(context.payload, context.user_id, own_only=own_only)
    if run.execution is None:
        yield PreparedRun(run, context)
        return
    execution = Execution.of(run.execution)
    env = environment(execution, context.user_id)
    with workspace() as directory:
        yield PreparedRun(
            run,
            context,
            directory,
            env,
            execution.limits.grace_seconds,
            _clone(run, directory, context, repositories),
            write_input_files(directory, context),
            execution.push,
        )


def _clone(
    run: Run, directory: Path, context: RunContext, repositories: tuple[str, ...]
) -> Clone | None:
    """Clone the repository of a command into its workspace, if it has one."""
    execution = Execution.of(run.execution or {})
    if execution.repo is None:
        return None
    check_allowed(execution.repo, repositories)
    # Git executes what a command left in its clone, so without a sandbox there is none.
    sandbox_kind = choose_sandbox_kind("strict")
    branch = f"{BRANCH_PREFIX}{context.task_id}"
    repository = Repository(execution.repo, execution.ref, branch, repositories)
    limits = sandbox_limits(execution.limits, run.granted_seconds)
    return clone(repository, directory, sandbox_kind, limits, context)


def environment(execution: Execution, user_id: UserId) -> dict[str, str]:
    """Return the variables of a command, with secrets in place of references.

    The deployment's secrets are for the agent profile, which an operator wrote; the task's own
    variables may refer to its owner's secrets only, because its owner chooses the command.
    """
    own: Mapping[str, str] = resolve(execution.own_env, user_id, own_only=True)
    of_profile: Mapping[str, str] = resolve(execution.env, user_id)
    return {**_trace_context(), **own, **of_profile}


def _trace_context() -> dict[str, str]:
    """Return the variable with which a command goes on with the trace of its run."""
    traceparent = current_traceparent()
    return {} if traceparent is None else {VARIABLE: traceparent}
