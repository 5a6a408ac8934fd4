"""Builds Celery messages (protocol version 2) as Celery's workers read them from Redis.

Celery's own publisher sends one message at a time and spends half a millisecond on each, mostly on
features that these messages do not use. A test compares these messages with those Celery writes.
"""

import json
from base64 import b64encode
from collections.abc import Sequence
from typing import Final
from uuid import uuid4

# Follows the arguments in the body: nothing is called when the task has ended.
EMBEDDED: Final = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}


def message(
    task: str, args: Sequence[object], *, message_id: str, queue: str, display: str, origin: str
) -> str:
    """Return the message that calls a task; Flower shows `display` instead of the arguments."""
    body = json.dumps([args, {}, EMBEDDED]).encode()
    representations = {"argsrepr": display, "kwargsrepr": "{}"}
    return json.dumps(
        {
            "body": b64encode(body).decode(),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": {
                "lang": "py",
                "task": task,
                "id": message_id,
                "shadow": None,
                "eta": None,
                "expires": None,
                "group": None,
                "group_index": None,
                "retries": 0,
                "timelimit": [None, None],
                "root_id": message_id,
                "parent_id": None,
                **representations,
                "origin": origin,
                "ignore_result": None,
                "replaced_task_nesting": 0,
                "stamped_headers": None,
                "stamps": {},
            },
            "properties": {
                "correlation_id": message_id,
                # There is no result to reply with.
                "reply_to": "",
                **representations,
                "delivery_mode": 2,
                "delivery_info": {"exchange": "", "routing_key": queue},
                "priority": 0,
                "body_encoding": "base64",
                "delivery_tag": str(uuid4()),
            },
        }
    )
