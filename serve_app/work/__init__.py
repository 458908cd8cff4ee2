"""Leases jobs and drives their stages."""
