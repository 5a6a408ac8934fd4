"""The dispatcher: it claims tasks for free slots and publishes them to Celery."""
