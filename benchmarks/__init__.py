"""What Overnight is measured by: one module per question, each with a `main()`."""
