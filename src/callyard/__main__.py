"""`python -m callyard` is the command line."""

import sys

from callyard.cli import main

__all__: list[str] = []

sys.exit(main())
