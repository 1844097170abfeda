"""Other laptops, as far as one machine can play them: the goldens hold on each."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# Each moves the last bits of some operation: softmax and exp, matrix products, sums over threads.
LAPTOPS = {
    "no vector instructions": {"ATEN_CPU_CAPABILITY": "default"},
    "portable matrix products": {"MKL_CBWR": "COMPATIBLE"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}


@pytest.mark.parametrize("laptop", LAPTOPS)
def test_goldens_hold(laptop):
    done = subprocess.run(
        [sys.executable, "-m", "dslearn", "golden", "--check"],
        env=os.environ | LAPTOPS[laptop],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("equal to the golden ones") == 3, done.stdout
