"""Which release this is."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("overnight")
except PackageNotFoundError:
    # Run from a checkout that was never installed.
    VERSION = "0"
