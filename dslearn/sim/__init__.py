"""A stand-in for the `nki` package: kernels for Trainium2 run, and are refused, on any machine.

    import dslearn.sim
    dslearn.sim.install()          # registers `nki` when the vendor's package is absent
    import nki, nki.language as nl, nki.isa as nisa

It executes the instructions one by one in NumPy, with the hardware's numerics, and refuses what
the hardware refuses, naming the rule. docs/kernels.md teaches it, docs/reference/nki.md holds the
facts. Nothing here has run on a device.
"""

from __future__ import annotations

from dslearn.sim.install import install, installed, uninstall
from dslearn.sim.record import Instruction, Recording, recording
from dslearn.sim.rules import relax

__all__ = ["Instruction", "Recording", "install", "installed", "recording", "relax", "uninstall"]
