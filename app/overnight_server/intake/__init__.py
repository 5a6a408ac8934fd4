"""How work comes in: one task, a batch or a whole graph, in one transaction."""
