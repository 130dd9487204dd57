"""The way to the Java classes: a file of requests, one run of Maven, a file of answers."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
JAVA = Path(__file__).resolve().parent / "java"
BUILD = ROOT / "build" / "interop"
PATIENCE_SECONDS = 3_600
"""For all answers of a program; each waits for less."""


def missing_tools() -> list[str]:
    return [tool for tool in ("mvn", "java") if shutil.which(tool) is None]


def request(kind: str, **arguments: object) -> str:
    """One line for the Java side; bytes go in hex, text is not for it to quote."""
    words = [f"{name}={value.hex() if isinstance(value, bytes) else value}" for name, value in arguments.items()]
    return "\t".join([kind, *words])


def ask(pom: str, requests: list[str]) -> list[dict[str, str]]:
    """The answer to each request, in order, by the program that ``pom`` builds."""
    BUILD.mkdir(parents=True, exist_ok=True)
    asked, answered = BUILD / "requests.txt", BUILD / "answers.txt"
    asked.write_text("".join(f"{line}\n" for line in requests), encoding="ascii")
    answered.unlink(missing_ok=True)
    command = [
        "mvn",
        "-q",
        "-B",
        "-f",
        str(JAVA / pom),
        "compile",
        "exec:java",
        f"-Drequests={asked}",
        f"-Danswers={answered}",
    ]
    # PULSAR_…: what a standalone broker is to have in its environment.
    environment = {**os.environ, "PULSAR_STANDALONE_USE_ZOOKEEPER": "1"}
    # What the originals and served stores say is there for when an answer is different.
    said = BUILD / f"{Path(pom).stem}.log"
    try:
        with open(said, "wb") as out:
            done = subprocess.run(
                command, check=False, stdout=out, stderr=out, timeout=PATIENCE_SECONDS, env=environment
            )
    except subprocess.TimeoutExpired:
        answered_ones = len(answered.read_text("utf-8").splitlines())
        raise RuntimeError(f"no answer after {PATIENCE_SECONDS} s to: {requests[answered_ones]}") from None
    if done.returncode != 0:
        raise RuntimeError(f"Maven ended with {done.returncode}:\n{said.read_text('utf-8', 'replace')}")
    lines = answered.read_text("utf-8").removesuffix("\n").split("\n")
    answers = [dict(word.partition("=")[::2] for word in line.split("\t")) for line in lines]
    if len(answers) != len(requests):
        raise RuntimeError(f"{len(requests)} requests, {len(answers)} answers")
    return answers
