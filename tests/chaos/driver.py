"""One chaos run: start a stack, inject faults from a seed, let it recover, and check it."""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random

from overnight_worker.sandbox import probe_all_kinds
from tests.chaos import checks, leaks, logs
from tests.chaos.faults import BURST, FAULTS
from tests.chaos.handler_record import HandlerRecord
from tests.chaos.http_agents import add_agents
from tests.chaos.injector import FaultInjector
from tests.chaos.load import ACKNOWLEDGED, GRAPHS_SHARE, Load, users
from tests.chaos.plan import PERIODS, plan
from tests.chaos.report import Report
from tests.chaos.schedules import schedule_past_times
from tests.chaos.stack import ChaosStack, chaos_stack, command_of
from tests.chaos.tasks import COMMAND, GRAPH_SIZE, KINDS, POISON, REMOTE
from tests.support.invariants import record_plan_history

# Minimum counts that the producers reach by going on after the last fault; and for how long they
# may go on, as a multiple of the time with faults.
COUNTED_BY_LOAD = (ACKNOWLEDGED, "graphs", "cancels answered cancelled")
LONGEST_EXTENSION = 3


@dataclass(frozen=True)
class Options:
    """The duration, load and faults of a run."""

    seconds: float = 60.0
    seed: int = 0
    per_second: float = 12.0
    kill_every: float | None = None
    # After the faults, some task must end in every period of this length until all have ended.
    drain_seconds: float = 120.0
    # Minimum counts of the report, by their names in it.
    at_least: Mapping[str, int] = field(default_factory=dict)


def rate_for(tasks: int, seconds: float) -> float:
    """Return the rate of single tasks that gives this total together with graphs and bursts."""
    in_bursts = BURST / PERIODS["burst"]
    return max(1.0, (tasks / seconds - in_bursts) / (1 + GRAPHS_SHARE * GRAPH_SIZE))


def run(options: Options, log_directory: Path) -> Report:
    """Carry out one run and return its report; all logs stay in `log_directory`."""
    report = Report(options.seed, options.seconds)
    if not any(probe.usable for probe in probe_all_kinds()):
        KINDS.pop(COMMAND, None)
        report.notes.append("no commands: this machine can make no sandbox")
    with chaos_stack(log_directory) as stack:
        record_plan_history(stack.deployment.owner)
        stack.start()
        stack.ready()
        stack.start_restarter()
        load, injector = _inject_faults(stack, options, report)
        drained = _recover(stack, load, options, report)
        handler_record = HandlerRecord.read(stack.handler_record)
        _check(stack, load, injector, handler_record, report, drained=drained)
        _count(stack, load, injector, handler_record, report)
    report.require(options.at_least)
    return report


def _inject_faults(
    stack: ChaosStack, options: Options, report: Report
) -> tuple[Load, FaultInjector]:
    producers = users(stack.deployment, stack.api_url, Random(options.seed), options.seconds)
    add_agents(stack, producers)
    for producer in producers:
        schedule_past_times(stack, producer.user_id, name="past", count=5)
    load = Load(stack, producers, options.seed, options.per_second)
    injector = FaultInjector(stack, load, producers, stack.logs / "faults.log", FAULTS)
    load.start()
    try:
        injector.perform(plan(options.seed, options.seconds, options.kill_every), options.seconds)
    except BaseException:
        load.finish(timeout=0)
        raise
    finally:
        # Even if the injector fails: a stopped process could never end.
        injector.end_all()
    injector.heal()
    # Without faults the rest takes as long as the machine needs, but not for ever.
    minima = {what: n for what, n in options.at_least.items() if what in COUNTED_BY_LOAD}
    load.go_on_until(minima, LONGEST_EXTENSION * options.seconds)
    report.add(
        checks.as_findings({"planned faults that never occurred": injector.missing_faults()})
    )
    return load, injector


def _recover(stack: ChaosStack, load: Load, options: Options, report: Report) -> bool:
    began = time.monotonic()
    if not load.finish(options.drain_seconds):
        report.add({"producers": ["some submissions got no response"]})
    report.work["open when the faults stopped"] = stack.open_tasks()
    left = _drain(stack, options.drain_seconds)
    took = time.monotonic() - began
    report.notes.append(f"drained {took:.1f} s after the last fault" if not left else "not drained")
    if left:
        rows = stack.deployment.rows(
            "SELECT state, type, count(*) AS n, min(id::text) AS first FROM tasks"
            " WHERE state NOT IN ('completed', 'dead_lettered', 'cancelled') GROUP BY state, type"
        )
        finding = f"no task ended for {options.drain_seconds:g} s, and these are left"
        report.add({finding: [str(row) for row in rows]})
    return not left


def _drain(stack: ChaosStack, idle_seconds: float) -> int:
    """Wait until no task is open, or none ended for so many seconds; return how many are open.

    How long all of them take depends on the machine; that they end does not.
    """
    fewest, ended_at = stack.open_tasks(), time.monotonic()
    while fewest and time.monotonic() - ended_at < idle_seconds:
        time.sleep(0.2)
        if (left := stack.open_tasks()) < fewest:
            fewest, ended_at = left, time.monotonic()
    return fewest


def _check(
    stack: ChaosStack,
    load: Load,
    injector: FaultInjector,
    handler_record: HandlerRecord,
    report: Report,
    *,
    drained: bool,
) -> None:
    record = load.record
    report.add(injector.findings)
    report.add(checks.invariants(stack, record, drained=drained))
    report.add(checks.promises(stack, record))
    quiet_since = datetime.now(UTC)
    before = checks.footprint(stack)
    if drained:
        # While tasks run, neither the rows nor the handlers' record is complete.
        report.add(checks.handler_runs(stack, handler_record, injector.killed_pids))
        report.add(checks.artifacts(stack))
        report.add(checks.replay(stack))
        report.add(leaks.at_rest(stack))
    report.add(checks.falsely_blamed(stack, handler_record, injector.killed_pids))
    report.add(leaks.exits(stack.exits))
    report.add(leaks.after_shutdown(stack, stack.shut_down()))
    if drained:
        report.add(checks.moved(stack, before))
    findings, errors = logs.of_postgres(stack)
    report.add(findings)
    for text, count in errors.most_common(8):
        report.notes.append(f"postgres: {count} times {text}")
    report.add(logs.of_audit(stack))
    findings, events = logs.of_deployment(stack, quiet_since if drained else None)
    report.add(findings)
    for text, count in events.most_common(40):
        report.notes.append(f"log: {count} times {text[:140]}")


def _completed(stack: ChaosStack, kind: str) -> int:
    sql = "SELECT count(*) AS n FROM tasks WHERE type = :kind AND state = 'completed'"
    return int(stack.deployment.one(sql, kind=kind)["n"])


def _count(
    stack: ChaosStack,
    load: Load,
    injector: FaultInjector,
    handler_record: HandlerRecord,
    report: Report,
) -> None:
    rows = stack.deployment.rows
    states = {
        row["state"]: row["n"] for row in rows("SELECT state, count(*) AS n FROM tasks GROUP BY 1")
    }
    report.work |= {
        ACKNOWLEDGED: len(load.record.acks),
        **{f"tasks {state}": count for state, count in sorted(states.items())},
        **dict(sorted(load.record.counts.items())),
        "runs started": len(handler_record.starts),
        "runs finished": len(handler_record.ends),
    }
    report.faults |= dict(sorted(injector.counts.items()))
    report.faults |= {f"restarts of {name}": n for name, n in sorted(stack.restarts.items())}
    report.consequences |= {
        f"{command} ended with {code}": count
        for (command, code), count in sorted(
            Counter((command_of(end.service), end.code) for end in stack.exits).items()
        )
    }
    outcomes = rows("SELECT outcome, count(*) AS n FROM attempts GROUP BY 1 ORDER BY 1")
    report.consequences |= {
        **{f"attempts {row['outcome']}": row["n"] for row in outcomes},
        "stale results stored": rows("SELECT count(*) AS n FROM stale_results")[0]["n"],
        "runs overtaken by a later one": len(handler_record.overtaken()),
        "tasks marked as poison": rows("SELECT count(*) AS n FROM dead_letters WHERE poison_pill")[
            0
        ]["n"],
        "attempts in a bundle": rows(
            "SELECT count(*) AS n FROM attempts WHERE bundle IS NOT NULL AND started_at IS NOT NULL"
        )[0]["n"],
        "poison that ran": sum(
            line["type"] == POISON for lines in handler_record.starts.values() for line in lines
        ),
        "areas audited": rows(
            "SELECT count(*) AS n FROM audit_positions WHERE round_ended_at IS NOT NULL"
        )[0]["n"],
        "commands completed": _completed(stack, COMMAND),
        "tasks of HTTP agents completed": _completed(stack, REMOTE),
        "billing months started": rows("SELECT count(*) AS n FROM lanes WHERE cycle > 47")[0]["n"],
    }
