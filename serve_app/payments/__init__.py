"""Purchases through a payment provider: a small interface, and who speaks it."""
