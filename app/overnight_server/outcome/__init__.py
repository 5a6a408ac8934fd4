"""What a claim's holder may do: start, heartbeat, settle, hand back."""
