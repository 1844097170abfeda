"""What all tests share: no test is timed, on a busy machine any call may take long.

Properties are checked on the same examples every time, so that a change that fails is the change's
fault. `pytest --hypothesis-profile=explore` looks for new ones.
"""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("dslearn", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile("dslearn")
