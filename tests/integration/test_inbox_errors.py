"""Errors of an inbox insert are the same for every database driver."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import InternalError, ProgrammingError
from sqlalchemy.orm import Session

from overnight import errors, inbox
from overnight_server.control.keys import issue, revoke
from overnight_server.store.db import driver_url
from tests.support.deployment import Deployment


@pytest.fixture
def key(deployment: Deployment) -> str:
    return issue(deployment.app, deployment.user(), name="shop")


@pytest.fixture
def shop(database_url: str) -> Iterator[Engine]:
    engine = create_engine(driver_url(database_url))
    yield engine
    engine.dispose()


def test_a_revoked_key_raises_an_overnight_error_with_every_driver(
    deployment: Deployment, shop: Engine, key: str
) -> None:
    revoke(deployment.app, key.split("_")[2])

    with pytest.raises(errors.Unauthenticated), shop.begin() as tx:
        inbox.submit(tx, "x", api_key=key)
    with pytest.raises(errors.Unauthenticated), Session(shop) as session:
        inbox.submit(session, "x", api_key=key)
    bare = shop.raw_connection()
    with pytest.raises(errors.Unauthenticated):
        inbox.submit(bare, "x", api_key=key)
    bare.close()


def test_other_database_errors_are_raised_unchanged(shop: Engine, key: str) -> None:
    with shop.connect() as tx:
        with pytest.raises(ProgrammingError):
            tx.execute(text("SELECT nothing"))

        with pytest.raises(InternalError):
            inbox.submit(tx, "x", api_key=key)
