"""The producers of a chaos run go on until the run has proven enough, however slow the machine."""

import threading

from tests.chaos.load import ACKNOWLEDGED, Load, Record

MINIMA = {ACKNOWLEDGED: 3, "graphs": 1}


def load_with(record: Record) -> Load:
    """Return a load whose producers were not started."""
    load = Load(None, [], seed=1, per_second=1)  # type: ignore[arg-type]
    load.record = record
    return load


def test_producers_go_on_until_the_minimum_counts_are_reached() -> None:
    record = Record(acks=[None])  # type: ignore[list-item]
    load = load_with(record)
    waiting = threading.Thread(target=load.go_on_until, args=(MINIMA, 60.0))
    waiting.start()

    record.ack(None)  # type: ignore[arg-type]
    record.ack(None)  # type: ignore[arg-type]
    assert not record.has_reached(MINIMA), "no graph yet"
    assert waiting.is_alive()
    record.count("graphs")
    waiting.join()

    assert record.has_reached(MINIMA)


def test_producers_that_never_reach_the_counts_end() -> None:
    load = load_with(Record())

    load.go_on_until({ACKNOWLEDGED: 1}, timeout=0.0)

    assert not load.record.has_reached({ACKNOWLEDGED: 1})
