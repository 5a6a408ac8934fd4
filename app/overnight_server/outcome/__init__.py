"""What the holder of a claim may do: start, heartbeat, settle, give back, suspend."""
