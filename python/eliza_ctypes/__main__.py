"""``python -m eliza_ctypes`` is the ``eliza-ctypes`` command."""

import sys

from .cli import main

sys.exit(main())
