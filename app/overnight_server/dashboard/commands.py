"""The commands that do the same as a page, to copy."""

from shlex import quote

from overnight_server.dashboard.search import Search
from overnight_server.domain.lifecycle import State, names_of

#: The option of `overnight list` for each field of a filter.
OPTIONS = {
    "type": "--type",
    "tag": "--tag",
    "project_id": "--project",
    "source": "--source",
    "title": "--title",
    "dag_id": "--dag",
    "created_after": "--created-after",
    "created_before": "--created-before",
    "ended_after": "--ended-after",
    "ended_before": "--ended-before",
    "created_by": "--by",
    "error": "--error",
    "lock": "--lock",
    "min_cost_usd": "--min-cost",
    "below_cost_usd": "--below-cost",
    "min_attempts": "--min-attempts",
    "waits_for": "--waits-for",
    "fingerprint": "--fingerprint",
}


def list_command(search: Search, states: frozenset[State] | None) -> str:
    """Return the command that lists what a search selects in these states; None means all.

    Empty if no command lists the same: `overnight list` does not judge what keeps all tasks of the
    user waiting, and what was not understood is in no command.
    """
    status = None if states is None else names_of(states)
    is_same = search.waits_for is None and not search.problems
    if not is_same or (states is not None and status is None):
        return ""
    words = ["overnight", "list"]
    for name in status.split(",") if status else ():
        words += ["--status", name]
    for name, value in search.filter.model_dump(mode="json", exclude_none=True).items():
        words += [OPTIONS[name], str(value)]
    return " ".join(quote(word) for word in words)
