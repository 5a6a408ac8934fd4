"""Other queues, each a small script that runs in the environment of the peers."""
