"""A cluster of Spark's own on this machine: a master, and workers that say they are on hosts of their own.

Not ``local-cluster``: its workers are all on one host, and a task is never tried a second time on the host where it
runs. All of 127.0.0.0/8 is this machine.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from bookstand.pipeline.spark.java import java_home
from tests.kit import PATIENCE, ROOT

_CLASS = Path(pyspark.__path__[0]) / "bin" / "spark-class"
_MASTER, _WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"
_SMALL = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


def environment(folder: Path, host: str) -> dict[str, str]:
    home = java_home(folder)
    return {
        **os.environ,
        **({} if home is None else {"JAVA_HOME": home}),
        "SPARK_LOCAL_IP": host,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": _SMALL,
        "SPARK_NO_DAEMONIZE": "1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
    }


@contextmanager
def cluster(folder: Path, workers: int = 2) -> Iterator[str]:
    """The master's URL, with all workers there."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        port = _free_port()
        options = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
        master = stack.enter_context(_running(folder / "master.log", "127.0.0.1", _MASTER, *options))
        url = f"spark://127.0.0.1:{port}"
        _wait_for(port, master)
        for number in range(workers):
            host = f"127.0.0.{number + 2}"
            work = str(folder / f"work-{number}")
            options = ["--host", host, "--cores", "1", "--memory", "700m", "--work-dir", work, "--webui-port", "0"]
            stack.enter_context(_running(folder / f"worker-{number}.log", host, _WORKER, *options, url))
        yield url


@contextmanager
def _running(log: Path, host: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(_CLASS), *arguments], env=environment(log.parent, host), stdout=out, stderr=subprocess.STDOUT
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError("the master did not begin")
