"""The HTTP clients of producers, synchronous and asynchronous."""
