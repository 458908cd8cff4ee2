"""Interfaces of other services over the native one: a translation each, never a second service."""
