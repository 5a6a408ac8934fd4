"""When tasks will start and end: the gate simulated on observed durations."""
