"""One act of an operator in its own process, so that fault points can kill it."""

import os
import sys
from uuid import UUID

from overnight.errors import Refused
from overnight_server.control.dead_letters import retry
from overnight_server.domain.ids import UserId, parse_task
from overnight_server.fault_points import arm
from overnight_server.intake.add_edges import NewEdge, add_edges
from overnight_server.store.db import ADMIN, DatabaseUnreachable, Db


def main() -> int:
    """Retry one dead letter, or add an edge between two tasks.

    `python -m tests.chaos.operator URL TASK [PARENT USER]`
    """
    url, task, *edge = sys.argv[1:]
    arm(os.environ.get("OVERNIGHT_FAULT"))
    db = Db.connect(url, role=ADMIN, application_name="chaos-operator", pool_size=1)
    try:
        if edge:
            parent, user = edge
            edges = [NewEdge(parse_task(parent), parse_task(task), "finished")]
            add_edges(db, UserId(UUID(user)), edges, actor="human:chaos")
        else:
            retry(db, parse_task(task), actor="human:chaos", attempts=1)
    except (Refused, DatabaseUnreachable) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    finally:
        db.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
