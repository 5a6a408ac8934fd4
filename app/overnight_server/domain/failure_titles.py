"""What failures of one kind mean, as a title for people, by a rule for each class of errors."""

from collections.abc import Mapping

#: What a class of errors means, for one task and for several.
TITLES: Mapping[str, tuple[str, str]] = {
    "context_overflow": (
        "{} is longer than the model can read",
        "{} are longer than the model can read",
    ),
    "auth_failure": ("{} was refused by a service", "{} were refused by a service"),
    "rate_limit": ("{} asked too often", "{} asked too often"),
    "timeout": ("{} took too long", "{} took too long"),
    "crash": ("{} kills its process", "{} kill their process"),
    "worker_lost": ("{} lost its worker", "{} lost their worker"),
    "out_of_memory": ("{} needs more memory", "{} need more memory"),
    "budget_exceeded": ("{} cost more than allowed", "{} cost more than allowed"),
    "invalid_output": ("The output of {} was rejected", "The output of {} was rejected"),
    "deadline_exceeded": ("{} did not start in time", "{} did not start in time"),
}
OTHERWISE = ("{} failed", "{} failed in the same way")


def title_of_failures(reason: str | None, number: int, title: str) -> str:
    """Return the title of tasks that failed alike; `title` is that of the only one.

    >>> title_of_failures("timeout", 1, "“Read the papers”")
    '“Read the papers” took too long'
    >>> title_of_failures("context_overflow", 1200, "")
    '1,200 tasks are longer than the model can read'
    """
    one, many = TITLES.get(reason or "", OTHERWISE)
    return one.format(title) if number == 1 else many.format(f"{number:,} tasks")
