"""How many generated examples a test looks at: fewer in ``make test`` than in ``make test-all``."""

from __future__ import annotations

from hypothesis import settings

FEWER_EXAMPLES = "fewer examples"
EVERY_EXAMPLE = "every example"
SHARE = 4
"""By which ``make test`` divides."""

settings.register_profile(FEWER_EXAMPLES, max_examples=settings().max_examples // SHARE)
settings.register_profile(EVERY_EXAMPLE, settings.get_profile("default"))


def every_example() -> bool:
    """Whether nothing is left out."""
    return settings.get_current_profile_name() == EVERY_EXAMPLE


def examples(number: int) -> int:
    """``number`` with every example, a part of it in the suite of a pull request."""
    return number if every_example() else max(1, number // SHARE)
