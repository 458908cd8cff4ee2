"""The service: what speaks HTTP and what drives jobs."""

__version__ = "0.3.0"

API_PREFIX = "/v1/api"
"""The path below which all operations of the API are."""
