"""Forecast when tasks start and end: simulate the gate on observed run durations."""
