"""What handler authors use: the decorator, the context and the exceptions that steer a task."""
