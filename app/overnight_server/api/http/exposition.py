"""The metrics of the deployment in the text format that Prometheus reads."""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from overnight_server.insight.metrics import METRICS, Metric, Sample, read_metrics
from overnight_server.settings import Settings
from overnight_server.store.db import Db

MEDIA_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4


def expose(db: Db, settings: Settings) -> bytes:
    """Return all metrics, read now: every API process answers alike."""
    samples = read_metrics(
        db,
        liveness=timedelta(seconds=settings.worker_liveness),
        folders=_folders(settings),
    )
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(samples))
    return generate_latest(registry)


class _Collected:
    """What one scrape has read, as a collector of prometheus-client."""

    def __init__(self, samples: Mapping[str, Sequence[Sample]]) -> None:
        self._samples = samples

    def collect(self) -> Iterable[Family]:
        """Yield each metric with its samples."""
        for name, metric in METRICS.items():
            yield _family(metric, self._samples[name])


def _family(metric: Metric, samples: Sequence[Sample]) -> Family:
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=metric.labels)
    for labels, value in samples:
        family.add_metric(list(labels), value)
    return family


def _folders(settings: Settings) -> dict[str, Path]:
    """Return the folders in which this machine keeps data of the deployment."""
    folders = {"home": settings.home, "temporary": Path(tempfile.gettempdir())}
    store = settings.artifact_store
    if store is not None and "://" not in store:
        folders["artifacts"] = Path(store)
    return folders
