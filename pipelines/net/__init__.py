"""Requests that leave the service: checked addresses, pinned connections, bounded downloads."""
