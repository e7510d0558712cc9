"""``python -m gruppetto`` is ``gruppetto``."""

from __future__ import annotations

import sys

from gruppetto.cli.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
