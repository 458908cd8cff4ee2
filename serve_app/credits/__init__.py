"""Credits and usage."""
