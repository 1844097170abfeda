"""Registers the stand-in as `nki` where the vendor's package is not installed.

`NEURON_PLATFORM_TARGET_OVERRIDE` may say trn2 (or gen3), which is all that is simulated.
`NKI_SIMULATOR` and `NKI_PRECISE_FP`, which the vendor's simulator reads, change nothing here:
every call simulates, with exact low-precision storage.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType

from dslearn.errors import BackendError
from dslearn.sim.rules import NotSupportedError
from dslearn.vendor import STAND_IN_MARK, probe

TARGET_VARIABLE = "NEURON_PLATFORM_TARGET_OVERRIDE"
_hidden: dict[str, ModuleType] = {}  # modules of the vendor's package that `force` put aside


def installed() -> bool:
    """Whether `nki` is the stand-in in this process."""
    return bool(getattr(sys.modules.get("nki"), STAND_IN_MARK, False))


def install(force: bool = False) -> bool:
    """Register `nki`, `nki.language`, `nki.isa`, ...; True when `nki` is the stand-in afterwards.

    The vendor's package, where there is one, is left alone and the answer is False; `force` puts
    it aside until `uninstall`. PyPI's placeholder does not count. Doing it twice changes nothing.

    Raises:
        NotSupportedError: another target than trn2 is asked for.
        BackendError: there is an `nki` that is neither the vendor's nor a placeholder, or broken.
    """
    target = os.environ.get(TARGET_VARIABLE, "").strip().lower()
    if target not in ("", "trn2", "gen3"):
        raise NotSupportedError(
            f"{TARGET_VARIABLE}={target}: the stand-in simulates trn2 (gen3) only", "platform"
        )
    if installed():
        return True
    if not force:
        found = probe("nki")
        if found.real:
            return False
        if found.status not in ("absent", "placeholder"):
            raise BackendError(
                f"nki is {found.status}: {found.detail}; the stand-in does not hide it unless you "
                "call dslearn.sim.install(force=True)"
            )
    from dslearn.sim.modules import build  # loads every instruction

    _hidden.update(_take())
    sys.modules.update(build())
    return True


def uninstall() -> None:
    """Take the stand-in out again and put back what `force` hid."""
    if installed():
        _take()
        sys.modules.update(_hidden)
        _hidden.clear()


def _take() -> dict[str, ModuleType]:
    """Remove `nki` and everything below it from the imported modules."""
    names = [name for name in sys.modules if name == "nki" or name.startswith("nki.")]
    return {name: sys.modules.pop(name) for name in names}
