"""What the holder of a claim may do: start, heartbeat, settle, hand back, suspend."""
