"""``python -m serve_app``."""

from serve_app.cli import main

main()
