from __future__ import annotations

import sys

from bookstand.demo.main import main

sys.exit(main(sys.argv[1:]))
