"""Keyless discovery: prices, estimates, formats, the interface document."""
