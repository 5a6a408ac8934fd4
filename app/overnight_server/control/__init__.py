"""What a person asks for: cancel, resolve a dead letter, change a plan."""
