"""What all routes share: authentication, rate limits, parameters, pages, errors, OpenAPI."""
