"""The commands that do the same as a page, to copy."""

from shlex import quote

from overnight_server.dashboard.search import Search

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


def list_command(search: Search, status: str = "") -> str:
    """Return the command that lists what a search selects."""
    words = ["overnight", "list"]
    if status:
        words += ["--status", status]
    for name, value in search.filter.model_dump(mode="json", exclude_none=True).items():
        words += [OPTIONS[name], str(value)]
    return " ".join(quote(word) for word in words)
