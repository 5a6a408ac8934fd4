"""The Celery side: what runs a task once it has been claimed."""
