"""When each sweep is due: the table that `overnight_worker` gives to Celery beat."""

from overnight_worker.beat_schedule import BEAT_SCHEDULE

__all__ = ["BEAT_SCHEDULE"]
