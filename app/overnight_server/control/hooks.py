"""Sources of webhooks: add, change, pause and remove them, and replace their secrets."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row

from overnight.errors import HookExists, HookNotFound, InvalidRequest
from overnight.models.hooks import HookChanges, HookCondition, HookCreate, HookRotate
from overnight_server.domain.hook_presets import NO_PRESET, PRESETS, HookPreset
from overnight_server.domain.hook_signatures import (
    DEFAULT_HEADER,
    HookScheme,
    check_secret,
    new_secret,
)
from overnight_server.domain.ids import HookId, UserId, new_hook_id
from overnight_server.intake.event_work import Template, check_template
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

#: How many sources a user may have.
MAX_SOURCES = 100


@dataclass(frozen=True)
class AddedHook:
    """A new source, and its secret, which is shown once."""

    hook_id: HookId
    secret: str


def add_hook(db: Db, user_id: UserId, wanted: HookCreate, *, actor: str) -> AddedHook:
    """Add a source of webhooks; raise InvalidRequest for what no sender or event could use."""
    preset = NO_PRESET if wanted.preset is None else PRESETS[wanted.preset]
    scheme = HookScheme(wanted.scheme or preset.scheme)
    secret = _checked_secret(scheme, wanted.secret)
    _check_header(scheme, wanted.header)
    _check_id_pointer(scheme, wanted.id_pointer)
    template = _first_template(wanted, preset)
    check_template(template)
    added = AddedHook(new_hook_id(), secret)
    conditions = preset.filter if wanted.filter is None else filter_as_json(wanted.filter)
    params = {
        "source_id": added.hook_id,
        "user_id": user_id,
        "name": wanted.name,
        "scheme": scheme,
        "header": wanted.header,
        "id_pointer": wanted.id_pointer,
        "secret": secret,
        "filter": json.dumps(conditions),
        "template": json.dumps(template.fields),
        "is_graph": template.is_graph,
        "per_minute": wanted.per_minute,
        "actor": actor,
    }

    def work(tx: Connection) -> None:
        lanes.lock_for_actor(tx, user_id, actor)
        _check_place(tx, user_id, wanted.name)
        tx.execute(statement("add_webhook_source"), params)

    db.atomically(work)
    return added


def change_hook(
    db: Db, user_id: UserId, hook_id: HookId, changes: HookChanges, *, actor: str
) -> None:
    """Change a source of webhooks; raise HookNotFound if the user has no such one."""
    given = changes.model_fields_set
    template = _new_template(changes.task, changes.graph)
    if template is not None:
        check_template(template)

    def work(tx: Connection) -> None:
        lanes.lock_for_actor(tx, user_id, actor)
        params = {"source_id": hook_id, "user_id": user_id}
        source = tx.execute(statement("lock_webhook_source"), params).one_or_none()
        if source is None:
            raise HookNotFound
        if changes.name not in (None, source.name):
            _check_place(tx, user_id, changes.name)
        header = changes.header if "header" in given else source.header
        _check_header(HookScheme(source.scheme), header)
        id_pointer = changes.id_pointer if "id_pointer" in given else source.id_pointer
        _check_id_pointer(HookScheme(source.scheme), id_pointer)
        columns = {"header": header, "id_pointer": id_pointer}
        tx.execute(
            statement("change_webhook_source"),
            params | _changed_columns(source, changes, template) | columns,
        )

    db.atomically(work)


def rotate_secret(
    db: Db, user_id: UserId, hook_id: HookId, wanted: HookRotate, *, actor: str
) -> str:
    """Give a source a new secret and return it; the old one is accepted for a while too."""

    def work(tx: Connection) -> str:
        lanes.lock_for_actor(tx, user_id, actor)
        params = {"source_id": hook_id, "user_id": user_id}
        source = tx.execute(statement("lock_webhook_source"), params).one_or_none()
        if source is None:
            raise HookNotFound
        secret = _checked_secret(HookScheme(source.scheme), wanted.secret)
        rotated = params | {"secret": secret, "overlap": wanted.overlap_seconds}
        tx.execute(statement("rotate_webhook_secret"), rotated)
        return secret

    return db.atomically(work)


def remove_hook(db: Db, user_id: UserId, hook_id: HookId, *, actor: str) -> None:
    """Remove a source of webhooks; its deliveries stay until their retention ends."""

    def work(tx: Connection) -> None:
        lanes.lock_for_actor(tx, user_id, actor)
        params = {"source_id": hook_id, "user_id": user_id}
        if tx.execute(statement("remove_webhook_source"), params).one_or_none() is None:
            raise HookNotFound

    db.atomically(work)


def filter_as_json(conditions: Sequence[HookCondition]) -> list[dict[str, Any]]:
    """Return conditions as they are stored: a pointer and one comparison each."""
    return [condition.model_dump(mode="json", exclude_unset=True) for condition in conditions]


def _first_template(wanted: HookCreate, preset: HookPreset) -> Template:
    template = _new_template(wanted.task, wanted.graph)
    if template is not None and template.is_graph:
        return template
    task = {**preset.task, **({} if template is None else template.fields)}
    if not task:
        raise InvalidRequest("task", "is missing", legal="a task, a graph, or a preset")
    return Template(task, is_graph=False)


def _new_template(
    task: Mapping[str, Any] | None, graph: Mapping[str, Any] | None
) -> Template | None:
    if task is not None and graph is not None:
        raise InvalidRequest("graph", "is given beside a task", legal="one of the two")
    if graph is not None:
        return Template(graph, is_graph=True)
    return None if task is None else Template(task, is_graph=False)


def _changed_columns(
    source: Row[Any], changes: HookChanges, template: Template | None
) -> dict[str, object]:
    conditions = source.filter if changes.filter is None else filter_as_json(changes.filter)
    is_paused = source.paused_at is not None if changes.paused is None else changes.paused
    return {
        "name": changes.name or source.name,
        "filter": json.dumps(conditions),
        "template": json.dumps(source.template if template is None else template.fields),
        "is_graph": source.is_graph if template is None else template.is_graph,
        "per_minute": changes.per_minute or source.per_minute,
        "is_paused": is_paused,
    }


def _check_place(tx: Connection, user_id: UserId, name: str | None) -> None:
    counts = tx.execute(
        statement("count_webhook_sources"), {"user_id": user_id, "name": name}
    ).one()
    if counts.same:
        raise HookExists(f"{name} is the name of another source of webhooks; choose another name")
    if counts.total >= MAX_SOURCES:
        raise HookExists(f"there are {MAX_SOURCES} sources already; remove one of them")


def _check_header(scheme: HookScheme, header: str | None) -> None:
    if header is not None and scheme not in DEFAULT_HEADER:
        legal = f"only with the schemes {' and '.join(DEFAULT_HEADER)}"
        raise InvalidRequest("header", f"is fixed for the scheme {scheme}", legal=legal)


def _check_id_pointer(scheme: HookScheme, pointer: str | None) -> None:
    if pointer is not None and scheme is HookScheme.STANDARD:
        legal = "only with another scheme; here the header webhook-id is signed"
        raise InvalidRequest("id_pointer", f"is fixed for the scheme {scheme}", legal=legal)


def _checked_secret(scheme: HookScheme, secret: str | None) -> str:
    if secret is None:
        return new_secret(scheme)
    try:
        check_secret(scheme, secret)
    except ValueError as error:
        # The message says what is legal, and never repeats the secret.
        raise InvalidRequest("secret", str(error)) from None
    return secret
