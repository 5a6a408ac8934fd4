"""`overnight explain`: every reason a task is not running."""

from app.cli import connection, house, options, output, references, showing

HEADERS = ("REASON", "WHY")


def explain(
    task: options.TaskRef,
    *,
    of_house: house.House = False,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Tell every reason a task is not running, and what can be done about it."""
    if of_house:
        house.refuse_connection(url, api_key_file)
        found = house.explain(task)
    else:
        with connection.client(url, api_key_file) as client:
            found = client.tasks.explain(references.resolve(client, task))
    if as_json:
        output.document(showing.plain(found))
        return
    output.record({"id": found.id, "state": found.state, "position": found.queue_position})
    if found.reasons:
        output.table(HEADERS, [(reason.code, reason.message) for reason in found.reasons])
    else:
        output.line("Nothing holds it: it starts with the gate's next pass.")
