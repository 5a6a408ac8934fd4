"""The tests' tasks in an ordinary Celery app, with Redis as broker and result backend."""

import os

from celery import Celery

from tests.support.celery_functions import define

REDIS = os.environ.get("TEST_CELERY_REDIS", "redis://127.0.0.1:1/0")
PREFIX = {"global_keyprefix": "celery-test:"}

app = define(Celery("with_redis", broker=REDIS, backend=REDIS, set_as_current=False))
app.conf.update(
    broker_transport_options=PREFIX,
    result_backend_transport_options=PREFIX,
    broker_connection_retry_on_startup=True,
    task_store_errors_even_if_ignored=True,
)
