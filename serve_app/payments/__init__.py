"""Purchases through a payment provider: an interface, and its implementations."""
