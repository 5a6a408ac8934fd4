"""An orchestrator: a goal comes in, a graph of tasks goes out, as one atomic submit.

    python examples/orchestrator.py "Build a landing page for client X" --wait

The goal is taken apart by rules, so that this runs offline. A model can do it instead:
`orchestrate(client, goal, by_model(ask))`, where `ask` is any function from a prompt to an answer.
Its answer is checked before it travels; what is wrong with it is told back to the model.

    OVERNIGHT_HANDLERS=examples.orchestrator overnight up

starts workers that know the types used here; they only say what they would do.
"""

import argparse
import json
from collections.abc import Callable, Mapping
from typing import Any

from overnight import Client, Context, dag, errors, handler
from overnight.graphs.shape import checked_graph
from overnight.models.dags import DagCreate, DagCreated

Decompose = Callable[[str], DagCreate]
TYPES = ("research", "code", "review", "test", "deploy", "synthesis")
PATIENCE = 3
ASSIGNMENT = """Take this goal apart into tasks that agents can do on their own: {goal}

Answer with one JSON object and nothing else: {{"title": …, "tasks": [{{"name": …, "title": …,
"type": …, "prompt": …, "after": [names of the tasks it needs]}}, …]}}. A type is one of {types}.
Tasks that do not need each other run at the same time, so name only what is really needed.
"""


def orchestrate(
    client: Client,
    goal: str,
    decompose: Decompose | None = None,
    *,
    budget_usd: float | None = None,
    idempotency_key: str | None = None,
) -> DagCreated:
    """Turn a goal into a graph and queue it, whole or not at all."""
    graph = (decompose or by_rules)(goal)
    chosen = {"budget_usd": budget_usd, "idempotency_key": idempotency_key}
    given = {name: value for name, value in chosen.items() if value is not None}
    return client.dags.create({**graph.model_dump(exclude_unset=True), **given})


def by_rules(goal: str) -> DagCreate:
    """Take a goal apart without asking anybody: by the words that stand in it."""
    words = goal.lower()
    if "page" in words or "site" in words:
        return _landing_page(goal)
    if any(word in words for word in ("fix", "bug", "crash")):
        return _fix(goal)
    return _anything(goal)


def by_model(ask: Callable[[str], str]) -> Decompose:
    """Let a model take goals apart; an answer that is no graph is sent back with what is wrong."""

    def decompose(goal: str) -> DagCreate:
        assignment = prompt = ASSIGNMENT.format(goal=goal, types=", ".join(TYPES))
        for _ in range(PATIENCE):
            answer = ask(prompt)
            try:
                return checked_graph(_object(answer))
            except (ValueError, errors.InvalidRequest) as error:
                prompt = f"{assignment}\nYou answered:\n{answer}\nThat cannot be used: {error}"
        raise ValueError(f"no usable graph after {PATIENCE} answers")

    return decompose


def _landing_page(goal: str) -> DagCreate:
    page = dag(goal)
    research = page.task("Research competitors", name="research", type="research", prompt=goal)
    design = page.task("Design a wireframe", name="design", type="research", prompt=goal)
    needs = page.task(
        "Synthesise the requirements",
        name="requirements",
        type="synthesis",
        after=[research, design],
    )
    code = page.task("Implement the page", name="implement", type="code", after=needs)
    page.task("Test and deploy", name="test", type="deploy", after=code)
    return page.request()


def _fix(goal: str) -> DagCreate:
    repair = dag(goal)
    seen = repair.task("Reproduce the fault", name="reproduce", type="test", prompt=goal)
    fixed = repair.task("Fix it", name="fix", type="code", after=seen)
    review = repair.task("Review the change", name="review", type="review", after=fixed)
    tests = repair.task("Run the tests", name="tests", type="test", after=fixed)
    repair.task("Deploy", name="deploy", type="deploy", after=[review, tests])
    repair.task("Say why not", name="explain", type="synthesis", after=[fixed.failed])
    return repair.request()


def _anything(goal: str) -> DagCreate:
    work = dag(goal)
    known = work.task("Find out what is known", name="research", type="research", prompt=goal)
    done = work.task("Do it", name="do", type="code", prompt=goal, after=known)
    work.task("Review what was done", name="review", type="review", after=done)
    return work.request()


def _object(answer: str) -> Mapping[str, Any]:
    """Return the JSON object of an answer, also where a model wrapped it in words."""
    found = json.loads(answer[answer.find("{") : answer.rfind("}") + 1])
    if not isinstance(found, dict):
        raise TypeError("the answer is no JSON object")
    return found


def pretend(ctx: Context) -> object:
    """Stand in for an agent: say what would be done."""
    ctx.progress(1.0, "done, so to speak")
    return {"would": ctx.title}


for kind in TYPES:
    handler(kind)(pretend)


def main() -> None:
    """Take a goal from the command line."""
    parser = argparse.ArgumentParser(description="Turn a goal into a graph of tasks and queue it.")
    parser.add_argument("goal")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be queued")
    parser.add_argument("--wait", action="store_true", help="wait until all of it has ended")
    chosen = parser.parse_args()
    if chosen.dry_run:
        print(by_rules(chosen.goal).model_dump_json(exclude_unset=True, indent=2))
        return
    with Client() as client:
        made = orchestrate(client, chosen.goal)
        print(made.id, "→".join(made.critical_path.tasks))
        if chosen.wait:
            print(client.dags.wait(made.id).status)


if __name__ == "__main__":
    main()
