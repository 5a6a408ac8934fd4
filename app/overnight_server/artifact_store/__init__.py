"""Where the content of large artifacts is kept: a folder, or a bucket of an S3-compatible service.

A blob is named by the SHA-256 of its content, so equal contents are kept once, and no name of an
artifact is ever part of a path.
"""
