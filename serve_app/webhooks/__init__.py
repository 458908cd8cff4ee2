"""Webhooks: signing, the delivery log, the test."""
