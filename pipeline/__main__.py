"""Entry point of ``python -m bookstand.pipeline NAME …`` and of ``spark-submit``: run a job from the command line."""

from __future__ import annotations

import sys

from bookstand.pipeline.execution.cli import main

if __name__ == "__main__":
    sys.exit(main())
