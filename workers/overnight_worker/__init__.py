"""The Celery workers: they run claimed tasks, and the sweeps that beat schedules."""
