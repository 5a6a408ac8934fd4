"""Capabilities: what a task requires and an agent offers, as plain texts."""

from collections.abc import Iterable

# A task for the agent `x` requires the capability `agent:x`.
AGENT_PREFIX = "agent:"
# A task of another runner than Python requires the capability of that runner.
RUNNER_PREFIX = "runner:"
PYTHON = "python"
COMMAND = "command"
HTTP = "http"


def agent_capability(agent_name: str) -> str:
    """Return the capability that only the agent of this name offers.

    >>> agent_capability("fitment")
    'agent:fitment'
    """
    return f"{AGENT_PREFIX}{agent_name}"


def agent_name_in(capabilities: Iterable[str]) -> str | None:
    """Return the agent that the required capabilities name, or None if they name none.

    >>> agent_name_in(["gpu", "agent:fitment"])
    'fitment'
    """
    for capability in capabilities:
        if capability.startswith(AGENT_PREFIX):
            return capability.removeprefix(AGENT_PREFIX)
    return None


def runner_capability(runner: str) -> str:
    """Return the capability of workers that can carry out runs with this runner.

    >>> runner_capability("command")
    'runner:command'
    """
    return f"{RUNNER_PREFIX}{runner}"


def runner_in(capabilities: Iterable[str]) -> str:
    """Return the runner that the required capabilities name; `python` if they name none.

    >>> runner_in(["gpu", "runner:command"])
    'command'
    """
    for capability in capabilities:
        if capability.startswith(RUNNER_PREFIX):
            return capability.removeprefix(RUNNER_PREFIX)
    return PYTHON
