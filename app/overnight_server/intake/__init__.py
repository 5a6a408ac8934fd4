"""Creating tasks: submit, spawn, join a graph, add edges, triggers, and the inbox."""
