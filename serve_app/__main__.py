"""``python -m serve_app``."""

from serve_app.cli.main import main

main()
