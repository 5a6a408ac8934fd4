"""Says at the start of a worker which sandboxes it can make."""

from overnight_server.settings import Settings
from overnight_server.telemetry import LogEvent, emit
from overnight_worker.identity import WORKER_ID
from overnight_worker.sandbox.probe import explain, probe_until_usable


def report_sandbox(settings: Settings) -> None:
    """Probe this machine before the pool is forked, and log the kind of sandbox, or a warning."""
    probes = probe_until_usable()
    chosen = probes[-1]
    if chosen.usable:
        emit(
            LogEvent.SANDBOX_FOUND, worker=WORKER_ID, sandbox=str(chosen.kind), memory=chosen.memory
        )
        return
    reason, remedy = explain(probes)
    fields = {"policy": settings.sandbox, "reason": reason, "remedy": remedy}
    emit(LogEvent.SANDBOX_MISSING, worker=WORKER_ID, **fields)
