"""What all routes share: authentication, rate limits, errors, pages, the OpenAPI description."""
