"""The same drain with one task at a time (OVERNIGHT_BUNDLE_MAX=1), against raw Celery.

Twice: with slots that go on by themselves, as they do by default, and with every task in a message
of its own (OVERNIGHT_REFILL_SECONDS=0).
"""

from benchmarks.deployment import supported_settings
from benchmarks.drain import US, Variant, drain_in_rounds
from benchmarks.options import Options
from benchmarks.peer_queues import CELERY, installed_peers
from benchmarks.results import BenchmarkResult
from benchmarks.servers import BenchmarkServers

BY_MESSAGE = f"{US}, a message each"


def measure(options: Options, servers: BenchmarkServers) -> BenchmarkResult:
    """Drain without bundles, then with a message for each task, then with Celery, in turns."""
    single = supported_settings(bundle_max=1)
    ours = [
        Variant(US, 1, single),
        Variant(BY_MESSAGE, 1 / 3, single | supported_settings(refill_seconds=0)),
    ]
    return drain_in_rounds(options, servers, ours, installed_peers(options, [CELERY]))
