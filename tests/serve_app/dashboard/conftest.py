"""What all tests of the dashboard share."""

from __future__ import annotations

import pytest

from tests.serve_app.running_api import RunningApi


@pytest.fixture(autouse=True)
def full_buckets(api: RunningApi) -> None:
    """All of them sign in from one address, more often than one may in a minute."""
    api.sql("DELETE FROM rate_limits")
