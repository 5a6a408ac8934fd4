"""The interfaces the design documents name, thin, over the one gate and its views."""
