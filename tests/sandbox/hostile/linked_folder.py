"""Replaces the folder of results by a link to the host's files."""

import os

os.symlink("/etc", "out")
