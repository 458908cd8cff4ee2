"""What a person sees: a client of the public API and how its answers are presented.

Imports httpx, rich, Pillow and the standard library only, nothing of the service.
"""
