"""Python imports this before all else where the folder is on its path: see ``tests/soak/defects.py``."""

import os
import sys
import traceback

if "BOOKSTAND_TEST_DEFECT" in os.environ:
    try:
        sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))
        from tests.soak import defects

        defects.switch_on_at_start()
    except BaseException:
        # Python goes on without, and then nothing would be broken.
        traceback.print_exc()
        os._exit(70)
