"""Reports the connections of a run's sandbox: in the log of the run, and in that of the worker."""

from overnight_server.telemetry import LogEvent, emit, text_line
from overnight_worker.run_context import RunContext
from overnight_worker.sandbox import Report


def connection_report(context: RunContext) -> Report:
    """Return what the proxy of a run's sandbox calls with a sentence for each connection."""

    def report(sentence: str) -> None:
        context.write_log("log", f"{text_line('info', sentence, {})}\n")
        own = {"queue_id": context.task_id, "epoch": context.epoch}
        emit(LogEvent.SANDBOX_CONNECTION, **own, detail=sentence)

    return report
