"""An orchestrator: it splits a goal into a graph of tasks and submits it in one transaction.

    python examples/orchestrator.py "Build a landing page for client X" --wait

By default rules split the goal, so that this runs offline. A model can do it instead:
`orchestrate(client, goal, by_model(ask))`, where `ask` is any function from a prompt to an answer.
The answer is checked before it is submitted; the model gets the errors of an invalid answer.

    OVERNIGHT_HANDLERS=examples.orchestrator overnight up

starts workers with handlers for these types; the handlers only return the title of the task.
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
MAX_ANSWERS = 3
ASSIGNMENT = """Split this goal into tasks that agents can do on their own: {goal}

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
    """Split a goal into a graph and submit it, whole or not at all."""
    graph = (decompose or by_rules)(goal)
    options = {"budget_usd": budget_usd, "idempotency_key": idempotency_key}
    fields = {name: value for name, value in options.items() if value is not None}
    return client.dags.create({**graph.model_dump(exclude_unset=True), **fields})


def by_rules(goal: str) -> DagCreate:
    """Split a goal by the words that it contains."""
    text = goal.lower()
    if "page" in text or "site" in text:
        return _landing_page(goal)
    if any(word in text for word in ("fix", "bug", "crash")):
        return _fix(goal)
    return _anything(goal)


def by_model(ask: Callable[[str], str]) -> Decompose:
    """Return a function that asks a model, and repeats an invalid answer with its errors."""

    def decompose(goal: str) -> DagCreate:
        assignment = prompt = ASSIGNMENT.format(goal=goal, types=", ".join(TYPES))
        for _ in range(MAX_ANSWERS):
            answer = ask(prompt)
            try:
                return checked_graph(_object(answer))
            except (ValueError, errors.InvalidRequest) as error:
                prompt = f"{assignment}\nYou answered:\n{answer}\nThat cannot be used: {error}"
        raise ValueError(f"no usable graph after {MAX_ANSWERS} answers")

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
    reproduced = repair.task("Reproduce the fault", name="reproduce", type="test", prompt=goal)
    fixed = repair.task("Fix it", name="fix", type="code", after=reproduced)
    review = repair.task("Review the change", name="review", type="review", after=fixed)
    tests = repair.task("Run the tests", name="tests", type="test", after=fixed)
    repair.task("Deploy", name="deploy", type="deploy", after=[review, tests])
    repair.task("Explain the failure", name="explain", type="synthesis", after=[fixed.failed])
    return repair.request()


def _anything(goal: str) -> DagCreate:
    work = dag(goal)
    research = work.task("Find out what is known", name="research", type="research", prompt=goal)
    done = work.task("Do it", name="do", type="code", prompt=goal, after=research)
    work.task("Review what was done", name="review", type="review", after=done)
    return work.request()


def _object(answer: str) -> Mapping[str, Any]:
    """Return the JSON object of an answer, which may have text around it."""
    value = json.loads(answer[answer.find("{") : answer.rfind("}") + 1])
    if not isinstance(value, dict):
        raise TypeError("the answer is not a JSON object")
    return value


def pretend(ctx: Context) -> object:
    """Return the title of the task, in place of an agent's work."""
    ctx.progress(1.0, "nothing to do")
    return {"would": ctx.title}


for kind in TYPES:
    handler(kind)(pretend)


def main() -> None:
    """Submit the goal that the command line names."""
    parser = argparse.ArgumentParser(
        description="Split a goal into a graph of tasks and submit it."
    )
    parser.add_argument("goal")
    parser.add_argument("--dry-run", action="store_true", help="print the graph and submit nothing")
    parser.add_argument("--wait", action="store_true", help="wait until the graph has ended")
    options = parser.parse_args()
    if options.dry_run:
        print(by_rules(options.goal).model_dump_json(exclude_unset=True, indent=2))
        return
    with Client() as client:
        created = orchestrate(client, options.goal)
        print(created.id, "→".join(created.critical_path.tasks))
        if options.wait:
            print(client.dags.wait(created.id).status)


if __name__ == "__main__":
    main()
