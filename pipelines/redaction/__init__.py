"""Personal data in texts: found, and marked."""
