"""``python -m tests.acceptance.chaos``."""

from tests.acceptance.chaos.run import main

main()
