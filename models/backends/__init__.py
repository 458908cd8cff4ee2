"""Backends of the model tasks; each is imported only where it runs."""
