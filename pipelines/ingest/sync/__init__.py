"""Where a separate sound recording belongs on a camera's timeline. Pure; no Ray, no I/O."""
