"""Pure rules: no IO, no clock, no Celery."""
