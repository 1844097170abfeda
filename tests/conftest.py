"""What all tests share: no test is timed, on a busy machine any call may take long."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("dslearn", deadline=None)
settings.load_profile("dslearn")
