"""The service: what speaks HTTP and what drives jobs."""

__version__ = "0.2.0"
