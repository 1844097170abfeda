"""Kernels in the vendor's own language, one file per family; docs/kernels.md teaches it.

Importing this package decides who runs them: the vendor's `nki` when it is installed, the
stand-in of `dslearn.sim` otherwise. `dslearn.kernels.NKI` is the answer, with the reason; kernel
files import `nki` and know nothing of the choice.
"""

from __future__ import annotations

import os

from dslearn import sim, vendor

# The vendor reads its target when `nki` is imported, and without a device assumes trn3.
os.environ.setdefault("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")

if not vendor.probe("nki").real:
    sim.install()

NKI = vendor.probe("nki")
"""Which `nki` the kernels run on: status "real" or "stand-in", and one sentence why."""
