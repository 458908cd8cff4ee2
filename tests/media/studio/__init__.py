"""Tools with which the project's own test media are drawn and spoken."""
