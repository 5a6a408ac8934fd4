"""The JSON documents that clients and the service exchange, one pydantic model each."""
