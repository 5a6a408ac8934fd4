"""What a person asks for: one function per act, which writes rows, event, log line and wake-up."""
