"""Which core the stand-in is: NeuronCore-v3, that of trn2.

Source: docs/reference/nki.md, section "Enums".
"""

from __future__ import annotations

from dslearn.sim.isa.enums import nc_version


def get_nc_version() -> nc_version:
    """`nc_version.gen3`."""
    return nc_version.gen3


def get_nc_sub_version() -> int:
    """0: trn2 has no sub-version."""
    return 0
