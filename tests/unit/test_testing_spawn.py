"""Handlers that spawn, wait and keep, tried in process."""

from collections.abc import Iterator

import pytest

from overnight import Context, errors
from overnight.handlers import registry
from overnight.handlers.control_exceptions import Suspended
from overnight.testing import MemoryContext, run


@pytest.fixture(autouse=True)
def register() -> Iterator[None]:
    def double(ctx: Context) -> object:
        return {"n": 2 * ctx.payload["n"]}

    def total(ctx: Context) -> object:
        return {"n": sum(value["n"] for value in ctx.inputs.values())}

    for kind, function in (("double", double), ("total", total)):
        registry._handlers[kind] = registry.Handler(kind, function)
    yield
    for kind in ("double", "total"):
        registry._handlers.pop(kind)


def spread(ctx: Context) -> object:
    ids = [ctx.spawn(f"double {n}", "double", payload={"n": n}) for n in (1, 2, 3)]
    return [child.output["n"] for child in ctx.wait_for(*ids)]


def test_a_handler_that_waits_is_called_again_with_its_childrens_outputs() -> None:
    done = run(spread)

    assert (done.output, done.runs) == ([2, 4, 6], 2)
    assert [child.request.task.payload for child in done.context.spawned] == [
        {"n": 1},
        {"n": 2},
        {"n": 3},
    ]


def test_a_repeated_run_spawns_nothing_twice() -> None:
    context = MemoryContext()
    with pytest.raises(Suspended):
        spread(context)
    context.resume([])

    with pytest.raises(Suspended):
        spread(context)

    assert len(context.spawned) == 3


def test_answers_are_found_by_key_or_type_and_may_be_errors() -> None:
    def mixed(ctx: Context) -> object:
        ctx.spawn("a", "unknown", key="a")
        ctx.spawn("b", "unknown", key="b")
        ctx.spawn("c", "double", payload={})
        return [(child.succeeded, child.output, child.error) for child in ctx.wait_for()]

    done = run(mixed, context=MemoryContext(answers={"a": 1, "unknown": ValueError("no")}))

    assert done.output == [
        [True, 1, None],
        [False, None, "ValueError: no"],
        [False, None, "KeyError: 'n'"],
    ]


def test_children_read_the_outputs_of_their_dependencies() -> None:
    def chain(ctx: Context) -> object:
        first = ctx.spawn("one", "double", key="one", payload={"n": 5})
        last = ctx.spawn("sum", "total", depends_on=[first])
        ctx.wait_for(last)
        return ctx.inputs

    done = run(chain)

    assert list(done.output.values()) == [{"n": 10}]


def test_the_context_records_artifacts() -> None:
    def keeps(ctx: Context) -> object:
        return [ctx.artifact("a", "text"), ctx.artifact("b", json=[1]), ctx.artifact("c", b"raw")]

    done = run(keeps)

    assert done.context.artifacts == {"a": "text", "b": [1], "c": b"raw"}
    assert len(set(done.output)) == 3


def test_a_handler_that_does_not_wait_runs_once() -> None:
    def forgets(ctx: Context) -> object:
        return ctx.spawn("later", "nobody has this")

    done = run(forgets)

    assert done.runs == 1
    assert done.context.spawned[0].state == "ready"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"key": "#1"}, "key"),
        ({"key": "a:b"}, "key"),
        ({"key": ""}, "key"),
        ({"priority": 9}, "priority"),
        ({"nonsense": 1}, "nonsense"),
        ({"idempotency_key": "k"}, "idempotency_key"),
    ],
)
def test_a_wrong_field_of_a_child_is_named(fields: dict[str, object], field: str) -> None:
    with pytest.raises(errors.InvalidRequest) as refusal:
        MemoryContext().spawn("a", "echo", **fields)  # type: ignore[arg-type]

    assert [fault.field for fault in refusal.value.fields] == [field]


def test_waiting_for_another_tasks_child_is_refused() -> None:
    with pytest.raises(errors.InvalidRequest, match="was not spawned by this task"):
        MemoryContext().wait_for("task_00000000000000000000000009")


@pytest.mark.parametrize(
    "arguments",
    [
        {"content": "a", "json": 1},
        {"json": {1, 2}},
        {"json": float("nan")},
        {"content": "\ud800"},
        {"json": ["\ud800"]},
    ],
)
def test_an_artifact_that_cannot_be_stored_is_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(errors.InvalidRequest):
        MemoryContext().artifact("a", **arguments)  # type: ignore[arg-type]
