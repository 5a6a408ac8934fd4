"""What commands share: reading arguments, printing tables and JSON, asking, waiting."""
