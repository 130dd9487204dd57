"""``python -m bookstand.pipeline NAME …``, and what ``spark-submit`` is given: a job from the command line."""

from __future__ import annotations

import sys

from bookstand.pipeline.execution.cli import main

if __name__ == "__main__":
    sys.exit(main())
