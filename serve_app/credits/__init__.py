"""Prices and credits."""
