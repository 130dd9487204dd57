"""Test kit for programs that use bookstand: faults, power cuts, a pytest plugin and Hypothesis strategies.

Names are imported on first use, so that faults require neither pytest nor Hypothesis. See docs/testing.md.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bookstand.testing import machine, model, strategies, workloads
    from bookstand.testing.clock import VirtualClock
    from bookstand.testing.crash.lab import (
        CrashFoundError,
        CrashLab,
        RecordedCrashError,
        RecordedCrashWarning,
        every_crash,
    )
    from bookstand.testing.faults.faults import Faults, SimulatedCrash, UnfiredFaultsError
    from bookstand.testing.machine import LedgerMachine

__all__ = [
    # faults
    "Faults",
    "SimulatedCrash",
    "UnfiredFaultsError",
    "VirtualClock",
    # power cuts
    "CrashFoundError",
    "CrashLab",
    "RecordedCrashError",
    "RecordedCrashWarning",
    "every_crash",
    # Hypothesis, and reference models
    "LedgerMachine",
    "machine",
    "model",
    "strategies",
    "workloads",
]

_HOMES = {
    "CrashFoundError": "crash.lab",
    "CrashLab": "crash.lab",
    "Faults": "faults.faults",
    "LedgerMachine": "machine",
    "RecordedCrashError": "crash.lab",
    "RecordedCrashWarning": "crash.lab",
    "SimulatedCrash": "faults.faults",
    "UnfiredFaultsError": "faults.faults",
    "VirtualClock": "clock",
    "every_crash": "crash.lab",
}
_MODULES = ("machine", "model", "strategies", "workloads")


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _HOMES:
        value: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    elif name in _MODULES:
        value = import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
