"""What a person looks at: one read service for every face."""
