"""The tasks and graphs that producers submit: every kind and several shapes, from a seed."""

from dataclasses import dataclass
from random import Random
from typing import Any, Final
from uuid import uuid4

from overnight_server.domain.retry import RetryRules
from overnight_server.intake.new_graph import Edge, NewTask

POISON: Final = "poison"
COMMAND: Final = "command"
# Tasks of HTTP agents.
REMOTE: Final = "remote"
# An argument of every command of this run: its processes in sandboxes are found by it.
SANDBOX_MARK: Final = f"chaos-{uuid4().hex}"
# Stores the key of its run in an artifact and in a file, and works in a program of its own session.
SCRIPT: Final = """
echo '{"event": "artifact", "name": "early", "text": "'$0'"}' >&3
setsid sh -c 'sleep $1; true' $1 $2 &
sleep $2
mkdir out
echo $0 > out/late
echo '{"event": "result", "output": {"key": "'$0'"}}' >&3
"""
# Kinds with their weights; most tasks are short, so that many of them run.
KINDS: Final = {
    "quick": 60,
    "short": 10,
    "medium": 8,
    "long": 3,
    "flaky": 6,
    "doomed": 2,
    "overrun": 1,
    "stubborn": 1,
    "night": 4,
    "locked": 4,
    "brood": 4,
    COMMAND: 5,
    REMOTE: 6,
    POISON: 1,
}
# The locks of a locked task: its project, or keys and overlapping paths.
LOCKED: Final[tuple[dict[str, Any], ...]] = (
    *({"project_id": project} for project in "abc"),
    *({"locks": locks} for locks in (["path:src"], ["path:src/a"], ["path:src/b", "repo:a"])),
)
ATTEMPTS: Final = 8
GRAPH_SIZE: Final = 5  # on average
# Mostly plain edges; some run after any end or only after a failure.
CONDITIONS: Final = ("success", "success", "success", "success", "finished", "failure")
POLICIES: Final = ("cancel", "cancel", "cancel", "continue")
GRAPH_RETRY: Final = RetryRules(initial_delay_sec=0.2, max_delay_sec=2)


@dataclass(frozen=True)
class TaskRequest:
    """The kind of a task and the fields of its create request."""

    kind: str
    fields: dict[str, Any]


def random_task(random: Random, number: int) -> TaskRequest:
    """Return a random task; the first ones are one of each kind, so that a short run has all."""
    kinds = list(KINDS)
    [kind] = random.choices(kinds, list(KINDS.values()))
    if number < len(kinds):
        kind = kinds[number]
    fields = OUTSIDE[kind](random) if kind in OUTSIDE else _fields(kind, random, number)
    return TaskRequest(kind, {"max_attempts": ATTEMPTS, **fields})


def _command(random: Random) -> dict[str, Any]:
    seconds = f"{random.uniform(0, 2):.2f}"
    argv = ["sh", "-c", SCRIPT, "{idempotency_key}", SANDBOX_MARK, seconds]
    return {"runner": COMMAND, "spec": {"argv": argv}}


def _remote(random: Random) -> dict[str, Any]:
    payload = {"seconds": random.uniform(0, 3), "failures": random.choice([0, 0, 0, 1])}
    return {"type": REMOTE, "payload": payload}


# Tasks that no handler of a worker runs.
OUTSIDE: Final = {COMMAND: _command, REMOTE: _remote}


def _fields(kind: str, random: Random, number: int) -> dict[str, Any]:
    work: dict[str, Any] = {"number": number, "seconds": random.uniform(0, 0.1)}
    match kind:
        case "quick":
            # A type of its own with short durations, so that several share one message.
            return {"type": "quick", "payload": {"number": number}}
        case "medium":
            return {"type": "agent", "payload": work | {"seconds": random.uniform(0.3, 1)}}
        case "long":
            return {"type": "agent", "payload": work | {"seconds": random.uniform(2, 5)}}
        case "flaky":
            return {"type": "agent", "payload": work | {"failures": random.randint(1, 3)}}
        case "doomed":
            return {"type": "agent", "payload": work | {"failures": 100}, "max_attempts": 2}
        case "overrun":
            return {
                "type": random.choice(["agent", "stubborn"]),
                "payload": work | {"seconds": 6},
                "timeout_seconds": 1,
                "max_attempts": 1,
            }
        case "stubborn":
            return {"type": "stubborn", "payload": work | {"seconds": random.uniform(1, 3)}}
        case "night":
            return {"type": "agent", "payload": work, "required_capabilities": ["agent:night"]}
        case "locked":
            return {"type": "agent", "payload": work, **random.choice(LOCKED)}
        case "brood":
            return {"type": "brood", "payload": {"number": number}}
        case "poison":
            return {"type": POISON, "payload": {"number": number}, "max_attempts": 3}
        case _:
            return {"type": "agent", "payload": work}


def graph(random: Random, number: int) -> tuple[list[NewTask], list[Edge]]:
    """Return a random graph: a chain, a fan out and in, or random forward edges."""
    shape = random.choice(["chain", "fan", "any"])
    size = random.randint(3, 7)
    pairs = {
        "chain": [(step, step + 1) for step in range(size - 1)],
        "fan": [
            *((0, step) for step in range(1, size - 1)),
            *((step, size - 1) for step in range(1, size - 1)),
        ],
        "any": [
            (parent, child)
            for child in range(1, size)
            for parent in range(child)
            if random.random() < 0.4
        ],
    }[shape]
    tasks = [
        NewTask(
            f"graph {number}.{place}",
            "agent",
            payload={
                "number": number,
                "seconds": random.uniform(0, 0.2),
                # One task in forty fails for good, and its dependents with it.
                "failures": 100 if random.random() < 0.025 else 0,
            },
            max_attempts=4,
            retry=GRAPH_RETRY,
            idempotency_key=f"graph-{number}-{place}",
        )
        for place in range(size)
    ]
    return tasks, [
        Edge(parent, child, random.choice(CONDITIONS), random.choice(POLICIES))
        for parent, child in sorted(set(pairs))
    ]
