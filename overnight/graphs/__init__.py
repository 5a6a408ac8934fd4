"""Task graphs: building, validating, laying out and drawing them."""
