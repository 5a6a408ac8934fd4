"""The notifier: one process that sends the messages of the outbox to the channels of users."""
