"""`overnight explain`: every reason a task is not running."""

from overnight_server.cli import connection
from overnight_server.cli.commands import all_users
from overnight_server.cli.terminal import options, output, short_ids, task_output

HEADERS = ("REASON", "WHY")


def explain(
    task: options.TaskRef,
    *,
    for_all_users: all_users.AllUsers = False,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Tell every reason a task is not running, and what can be done about it."""
    if for_all_users:
        all_users.refuse_connection(url, api_key_file)
        found = all_users.explain(task)
    else:
        with connection.client(url, api_key_file) as client:
            found = client.tasks.explain(short_ids.resolve(client, task))
    if as_json:
        output.document(task_output.plain(found))
        return
    output.record({"id": found.id, "state": found.state, "position": found.queue_position})
    if found.reasons:
        output.table(HEADERS, [(reason.code, reason.message) for reason in found.reasons])
    else:
        output.line("Nothing holds it: it starts with the gate's next pass.")
