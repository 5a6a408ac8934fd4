"""Prepares a run, and clears up after it: secrets, environment and workspace."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from overnight_server.domain.claims import Run
from overnight_server.domain.execution import Execution
from overnight_server.domain.ids import UserId
from overnight_worker.run_context import RunContext
from overnight_worker.runners.runner import PreparedRun
from overnight_worker.secrets import resolve, resolve_own
from overnight_worker.workspaces import workspace


@contextmanager
def prepared(run: Run, context: RunContext) -> Iterator[PreparedRun]:
    """Prepare a run; its workspace is removed at the end of the context.

    Raise SecretMissing if the worker lacks a secret that the task refers to.
    """
    context.payload = resolve(context.payload, context.user_id)
    if run.execution is None:
        yield PreparedRun(run, context)
        return
    execution = Execution.of(run.execution)
    env = environment(execution, context.user_id)
    with workspace() as directory:
        yield PreparedRun(run, context, directory, env, execution.limits.grace_seconds)


def environment(execution: Execution, user_id: UserId) -> dict[str, str]:
    """Return the variables of a command, with secrets in place of references.

    The deployment's secrets are for the agent profile, which an operator wrote; the task's own
    variables may refer to its owner's secrets only, because its owner chooses the command.
    """
    own = {name: resolve_own(value, user_id) for name, value in execution.own_env.items()}
    of_profile: Mapping[str, str] = resolve(execution.env, user_id)
    return {**own, **of_profile}
