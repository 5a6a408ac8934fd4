"""What producers and handler authors import; it never imports the service."""
