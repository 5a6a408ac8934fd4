"""What /metrics says, read as Prometheus reads it."""

from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from tests.support.api_user import ApiUser

Labels = Mapping[str, str]


@dataclass(frozen=True)
class Scrape:
    """The samples of one scrape, and the help text of each name."""

    samples: list[tuple[str, Labels, float]]
    help: Mapping[str, str]

    def find(self, name: str, **labels: str) -> dict[tuple[str, ...], float]:
        """Return the samples of a name that have these labels, by the values of all labels."""
        return {
            tuple(found.values()): value
            for sample, found, value in self.samples
            if sample == name and labels.items() <= found.items()
        }

    def value(self, name: str, **labels: str) -> float:
        """Return the only sample of a name with these labels."""
        [value] = self.find(name, **labels).values()
        return value

    def total(self, name: str) -> float:
        """Return the sum of all samples of a name."""
        return sum(self.find(name).values())

    def depth(self) -> dict[tuple[str, str], float]:
        """Return the open tasks by state and tier, without those that are none."""
        return {
            (labels["status"], labels["priority_tier"]): value
            for name, labels, value in self.samples
            if name == "task_queue_depth" and value
        }


def parse(text: str) -> Scrape:
    """Return what a text in the exposition format says; raise ValueError if it is not valid."""
    samples: list[tuple[str, Labels, float]] = []
    help_texts: dict[str, str] = {}
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        help_texts[name] = family.documentation
        samples += [(sample.name, sample.labels, sample.value) for sample in family.samples]
    return Scrape(samples, help_texts)


def scrape(user: ApiUser) -> Scrape:
    """Scrape the API with a user's key."""
    response = user.request("GET", "/metrics")
    assert response.status_code == 200, response.text
    return parse(response.text)
