"""``python -m matmill``."""

from __future__ import annotations

import sys

from matmill.cli import main

sys.exit(main())
