"""The ways to run a task."""
