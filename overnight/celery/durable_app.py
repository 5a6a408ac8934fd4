"""`durable(app)`: calls of a Celery app become tasks of Overnight, and its functions handlers.

`send_task`, `AsyncResult` and `control` of this one app are replaced, and every way to send a task
(`delay`, `apply_async`, signatures, beat) ends in `send_task`. Only the canvas (chain, group,
chord) is changed in Celery itself, for durable apps: it becomes one graph.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from weakref import WeakKeyDictionary

from celery import Celery, shared_task
from celery._state import get_current_app
from celery.app.task import Task as CeleryTask

from overnight.celery.canvas import CanvasPart, GraphPlan, GraphTask, label, task_names
from overnight.celery.canvas_calls import lead_canvas_calls
from overnight.celery.current_run import CurrentRun, current_run
from overnight.celery.results import MEMBER, TASK_PREFIX, DurableGroupResult, DurableResult
from overnight.celery.run_task import handler_of
from overnight.celery.settings_check import check_settings, check_task
from overnight.celery.task_fields import task_fields
from overnight.celery.transaction import (
    SPAWN_TYPE,
    open_connection,
    spawn_canvas,
    write_graph,
    write_task,
)
from overnight.celery.user_choice import HEADER, Keys, Submission, User, Users
from overnight.client.client import Client
from overnight.errors import NotFromCelery
from overnight.handlers import registry

BUILTIN = "celery."
# Tasks of Celery itself that call a function of the app for each item of a list.
KEPT_BUILTINS = frozenset({"celery.map", "celery.starmap"})
NEEDED_BY_WORKERS = frozenset({"broadcast", "inspect", "mailbox"})
MARK = "overnight_durable"
KEY = "idempotency_key"
MAX_TITLE = 200
_apps: WeakKeyDictionary[Celery, "DurableApp"] = WeakKeyDictionary()


class DurableApp:
    """A Celery app whose tasks are kept by Overnight; made by `durable`."""

    def __init__(
        self,
        app: Celery,
        users: Users,
        queues: Mapping[str, Mapping[str, Any]],
        ignore: Collection[str],
        *,
        connection: Callable[[], Any] | None = None,
        marked_only: bool = False,
    ) -> None:
        self.app = app
        self.connection = connection
        self.users = users
        self.queues = queues
        self.ignore = frozenset(ignore)
        self.marked_only = marked_only
        self._is_checked = False
        self._celery_send: Callable[..., Any] = app.send_task
        self._celery_result: Callable[..., Any] = app.AsyncResult
        _put_on(
            app,
            send_task=self.send_task,
            AsyncResult=self.result_of,
            control=DurableControl(self, app.control),
        )
        lead_canvas_calls(_submit_of)
        registry.add_source(self.register_handlers)

    def covers(self, name: str) -> bool:
        """Whether the tasks of this name are kept by Overnight."""
        if not self.marked_only:
            return True
        return bool(getattr(self.app.tasks.get(name), MARK, False))

    def send_task(self, name: str, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Submit a task; every call of `delay` and `apply_async` ends here."""
        if not self.covers(name):
            return self._celery_send(name, args, kwargs, **options)
        run = current_run()
        if run is not None and options.get("task_id") == run.context.task_id:
            return _note_retry(run, args, kwargs, options)
        self.check()
        if options.get("link"):
            return self.submit_canvas(self.app.signature(name), args, kwargs, options)
        fields = self.fields(name, args, kwargs, options)
        return self.submit(
            fields,
            Submission(name, tuple(args or ()), dict(kwargs or {}), options.get("headers") or {}),
        )

    def fields(
        self, name: str, args: Any, kwargs: Any, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the fields of the task that a call submits."""
        if "task_serializer" in self.ignore:
            options = {key: each for key, each in options.items() if key != "serializer"}
        return task_fields(self.app, name, args, kwargs, options, queues=self.queues)

    def submit(self, fields: dict[str, Any], submission: Submission) -> DurableResult:
        """Submit one task: in the caller's transaction, as a child of the run, or at once."""
        connection = open_connection(self.connection)
        if connection is not None:
            user = self.users.of(submission)
            written = write_task(connection, self.users.inbox_key(user), fields)
            return self.result(written, user=user)
        run = current_run()
        if run is not None and HEADER not in submission.headers:
            child = {key: each for key, each in fields.items() if key != KEY}
            title, name = child.pop("title"), child.pop("type")
            key = f"{label(name)}-{run.key_of([name, child['payload']])}"
            return self.result(run.context.spawn(title, name, key=key, **child))
        user = self.users.of(submission)
        task = self.users.client(user).tasks.create(fields.pop("title"), **fields)
        return self.result(task.id, user=user)

    def submit_canvas(self, part: Any, args: Any, kwargs: Any, options: dict[str, Any]) -> Any:
        """Submit a chain, a group or a chord as one graph; return the handle of its last part."""
        self.check()
        run = current_run()
        plan = GraphPlan(self.app, self._covered_fields, _id_of(run))
        outcome = plan.add(part, args or (), kwargs, options)
        submission = Submission(
            plan.tasks[0].fields["type"] if plan.tasks else "",
            tuple(args or ()),
            dict(kwargs or {}),
            options.get("headers") or {},
        )
        if not plan.tasks:
            return self._handle(outcome, {}, "", None)
        title = repr(part)[:MAX_TITLE]
        connection = open_connection(self.connection)
        if connection is not None:
            user = self.users.of(submission)
            key = self.users.inbox_key(user)
            written = write_graph(connection, key, plan.tasks, title)
            ids = {task.name: f"{written}{MEMBER}{task.name}" for task in plan.tasks}
            return self._handle(outcome, ids, written, user)
        if run is not None and HEADER not in submission.headers:
            return self._handle(outcome, _spawned(run, plan.tasks), run.context.task_id, None)
        user = self.users.of(submission)
        if len(plan.tasks) == 1:
            [only] = plan.tasks
            fields = {**only.fields, "payload": only.payload()}
            task = self.users.client(user).tasks.create(fields.pop("title"), **fields)
            return self._handle(outcome, {only.name: task.id}, task.dag_id, user)
        made = self.users.client(user).dags.create(_graph(plan.tasks, title))
        return self._handle(outcome, made.tasks, made.id, user)

    def _covered_fields(
        self, name: str, args: Any, kwargs: Any, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        if not self.covers(name):
            raise NotFromCelery(
                f"a canvas with {name}, which is not durable", "make all its tasks durable"
            )
        return self.fields(name, args, kwargs, options)

    def _handle(
        self, outcome: CanvasPart, ids: Mapping[str, str], graph_id: str, user: str | None
    ) -> DurableResult | DurableGroupResult:
        """Return the handle of a part of a graph, with those of the parts before it."""
        before = outcome.before
        parent = None if before is None else self._handle(before, ids, graph_id, user)

        def build(shape: Any) -> DurableResult | DurableGroupResult:
            if isinstance(shape, list):
                return DurableGroupResult(graph_id, [build(each) for each in shape])
            return self.result(ids[shape], user=user)

        handle = build(outcome.shape)
        handle.parent = handle.before = parent
        return handle

    def result(self, task_id: str, user: str | None = None) -> DurableResult:
        """Return the handle of a task of ours by its id."""
        return DurableResult(task_id, self.app, lambda: self.users.client(user))

    def result_of(self, task_id: str, *args: Any, **options: Any) -> Any:
        """Return the handle of a task that may be one of Celery's; this is `app.AsyncResult`."""
        if self.marked_only and not task_id.startswith(TASK_PREFIX):
            return self._celery_result(task_id, *args, **options)
        return self.result(task_id, user=options.get("user"))

    def check(self) -> None:
        """Raise NotFromCelery, once, for a setting of the app that cannot be kept.

        In an app of which only some tasks are durable, the settings are those of the others.
        """
        if not self._is_checked and not self.marked_only:
            check_settings(self.app.conf, self.ignore)
            self._is_checked = True

    def register_handlers(self) -> None:
        """Register a handler for each task of the app; workers call this after their imports."""
        self.check()
        self.app.loader.import_default_modules()
        self.app.finalize()
        for name, task in sorted(self.app.tasks.items()):
            if name.startswith(BUILTIN) and name not in KEPT_BUILTINS:
                continue
            if self.covers(name):
                check_task(task, self.ignore)
                registry.handler(name)(handler_of(self.app, name))
        registry.handler(SPAWN_TYPE)(spawn_canvas)


class DurableControl:
    """What `app.control` can still do: revoke tasks, and serve a Celery worker.

    Such a worker finishes what was in the broker when the app became durable.
    """

    def __init__(self, durable_app: DurableApp, control: Any) -> None:
        self._durable_app = durable_app
        self._control = control

    def revoke(self, task_id: str | Collection[str], *args: Any, **options: Any) -> None:
        """Cancel a task or several, also those that wait."""
        for each in [task_id] if isinstance(task_id, str) else task_id:
            handle = self._durable_app.result_of(each)
            if isinstance(handle, DurableResult):
                handle.revoke()
            else:
                self._control.revoke(each, *args, **options)

    def __getattr__(self, name: str) -> Any:
        if name in NEEDED_BY_WORKERS or self._durable_app.marked_only:
            return getattr(self._control, name)
        raise NotFromCelery(
            f"app.control.{name}", "use the command line, such as `overnight queue-status`"
        )


def durable(
    app: Celery,
    *,
    client: Client | None = None,
    user: User = None,
    keys: Keys = None,
    queues: Mapping[str, Mapping[str, Any]] | None = None,
    connection: Callable[[], Any] | None = None,
    ignore: Collection[str] = (),
) -> Celery:
    """Keep all tasks of a Celery app in Overnight, and return the app.

    `user` is the user to whom the tasks belong: a name, or a function of a Submission that returns
    a name; the header `overnight-user` of one call overrides it. `keys` has the API key of each
    name, as a mapping or a function. Without a user the tasks belong to the owner of
    OVERNIGHT_API_KEY, or of `client`. `queues` maps the name of a queue to fields of its tasks,
    such as `{"gpu": {"required_capabilities": ["gpu"]}}`. `connection` is a function that returns
    the database connection of the caller's open transaction, in which tasks are then submitted, or
    None outside one; `in_transaction` does so for a block. `ignore` lists settings that shall have
    no effect instead of being refused.
    """
    found = _apps.get(app)
    if found is None or found.marked_only:
        _apps[app] = DurableApp(
            app, Users(client, user, keys), queues or {}, ignore, connection=connection
        )
    return app


def durable_task(*args: Any, **options: Any) -> Any:
    """Keep one task in Overnight; used as `@durable_task`, in the place of `@shared_task`.

    It may also be written above `@app.task`. The other tasks of the app stay with Celery.
    """
    if len(args) == 1 and isinstance(args[0], CeleryTask):
        task = args[0]
        setattr(task, MARK, True)
        _keep_marked(task.app)
        return task
    _keep_marked(get_current_app())
    share: Callable[..., Any] = shared_task
    return share(*args, **{MARK: True}, **options)


def find(app: Celery) -> DurableApp | None:
    """Return what `durable` made of an app; None for an app that stays with Celery."""
    # A canvas without tasks knows only Celery's proxy of the current app.
    proxied = getattr(app, "_get_current_object", None)
    return _apps.get(app if proxied is None else proxied())


def _id_of(run: CurrentRun | None) -> str | None:
    return None if run is None else run.context.task_id


def _graph(tasks: Sequence[GraphTask], title: str) -> dict[str, Any]:
    """Return the graph to create; a key of one task would not be one of the graph."""
    return {
        "title": title,
        "tasks": [
            {
                **{key: each for key, each in task.fields.items() if key != KEY},
                "name": task.name,
                "payload": task.payload(),
                "after": list(task.after),
            }
            for task in tasks
        ],
    }


def _spawned(run: CurrentRun, tasks: Sequence[GraphTask]) -> dict[str, str]:
    """Spawn the tasks of a canvas from the running task; return their ids by name."""
    end = run.key_of([[task.fields["type"], task.payload(), task.after] for task in tasks])
    ids: dict[str, str] = {}
    for task in tasks:
        # A child has its key as its name, under which the tasks after it find its result.
        fields = {**task.fields, "payload": task.payload(lambda name: f"{name}-{end}")}
        fields.pop(KEY, None)
        ids[task.name] = run.context.spawn(
            fields.pop("title"),
            fields.pop("type"),
            key=f"{task.name}-{end}",
            depends_on=[ids[name] for name in task.after],
            **fields,
        )
    return ids


def _keep_marked(app: Celery) -> None:
    if app not in _apps:
        _apps[app] = DurableApp(app, Users(None, None, None), {}, (), marked_only=True)


def _submit_of(app: Celery, part: Any) -> Callable[..., Any] | None:
    """Return what submits a canvas; None if it stays with Celery."""
    found = find(app)
    if found is None:
        return None
    if found.marked_only and not any(found.covers(name) for name in task_names(app, part)):
        return None
    return found.submit_canvas


def _put_on(app: Celery, **members: Any) -> None:
    """Replace members of one app, not of its class."""
    for name, member in members.items():
        setattr(app, name, member)


def _note_retry(run: CurrentRun, args: Any, kwargs: Any, options: Mapping[str, Any]) -> None:
    """Note that the current run asks for a retry; `self.retry` sends its own task again."""
    if not options.get("retries"):
        raise NotFromCelery("self.replace()", "send the other task and return its id")
    if list(args or ()) != run.args or dict(kwargs or {}) != run.kwargs:
        raise NotFromCelery(
            "a retry with other arguments", "submit another task with them and return"
        )
    countdown, eta = options.get("countdown"), options.get("eta")
    if countdown is None and eta is not None:
        countdown = (eta - datetime.now(UTC)).total_seconds()
    run.retry_after = max(0.0, float(countdown or 0))
