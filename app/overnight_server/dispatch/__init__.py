"""The loop that fills free slots, and the only publisher to Celery."""
