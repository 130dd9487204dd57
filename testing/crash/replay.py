"""Replay lines, each of which repeats one crash, and the recordings saved for them."""

from __future__ import annotations

import os
from typing import NamedTuple

from bookstand.errors import IncorrectParameterError
from bookstand.testing.cache_directory import private_folder
from bookstand.testing.crash.recording import Recording
from bookstand.testing.crash.states import Case

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

VARIABLE = "BOOKSTAND_CRASH"
"""Environment variable with the crash to repeat; ``every_crash`` then tries no others."""

ATTEMPTS = 5
"""Attempts to reproduce a recording: workloads with threads do not always repeat their operations."""

_VERSION = "v1"
_TRY_ANEW = f"if you have changed the program since, run the test without {VARIABLE}"


class PowerCut(NamedTuple):
    """Crash to repeat: a case of the recording with this shape."""

    recorder: str
    shape: str
    case: Case

    def __str__(self) -> str:
        return f'{VARIABLE}="{_VERSION}:recorder={self.recorder};shape={self.shape};{self.case}"'


def line_in_place(mode: str, where: str) -> str:
    """Return the line that repeats a crash of the modes "simulated" and "kill"."""
    return f'{VARIABLE}="{_VERSION}:mode={mode};at={where}"'


def wanted_cut() -> PowerCut | None:
    """Return the power cut that the environment selects."""
    wanted = _wanted()
    if wanted is None:
        return None
    if "cut" not in wanted:
        raise IncorrectParameterError(f"{VARIABLE} asks for a crash of another mode")
    case = Case.parse(";".join(f"{name}={wanted[name]}" for name in ("cut", "drop", "tear") if name in wanted))
    return PowerCut(wanted.get("recorder", "auto"), wanted["shape"], case)


def wanted_in_place(mode: str) -> str | None:
    """Return the crash location that the environment selects in this mode."""
    wanted = _wanted()
    if wanted is None:
        return None
    if wanted.get("mode") != mode:
        raise IncorrectParameterError(f"{VARIABLE} asks for a crash of another mode")
    return wanted["at"]


def _wanted() -> dict[str, str] | None:
    text = os.environ.get(VARIABLE)
    if not text:
        return None
    version, _, rest = text.strip().strip('"').partition(":")
    wanted = dict(part.partition("=")[::2] for part in rest.split(";"))
    if version != _VERSION or not ({"shape", "cut"} <= wanted.keys() or {"mode", "at"} <= wanted.keys()):
        raise IncorrectParameterError(f"{VARIABLE}={text!r} describes no crash")
    return wanted


def keep(recording: Recording) -> None:
    """Save a recording, so that the crash can be repeated if the workload does not repeat its operations."""
    try:
        kept = recording.to_bytes()
    except IncorrectParameterError:
        return
    with open(_kept(recording.shape), "wb") as file:
        file.write(kept)


def kept_recording(shape: str, now: Collection[int]) -> tuple[Recording, str]:
    """Load a saved recording, with a message for a workload that no longer repeats it. ``now`` has the numbers of its
    current operations."""
    path = _kept(shape)
    if not os.path.exists(path):
        raise IncorrectParameterError(
            f"{VARIABLE} is of another workload, or of one that does not do the same things twice; "
            f"{path}, which held what it did, is gone; {_TRY_ANEW}"
        )
    with open(path, "rb") as file:
        recording = Recording.from_bytes(file.read())
    counts = " or ".join(map(str, sorted(now)))
    return recording, (
        f"The program does other things than when this crash was found: {len(recording.operations)} file operations "
        f"then, {counts} now.\nWhat was repeated is the recorded crash, from {path}; this says nothing of the program "
        f"as it is now:\n{_TRY_ANEW}."
    )


def _kept(shape: str) -> str:
    return os.path.join(private_folder(), f"{shape}.recording")
