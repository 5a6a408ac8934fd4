"""Ways to run a task."""
