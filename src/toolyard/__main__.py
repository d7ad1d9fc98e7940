"""`python -m toolyard` is the command line."""

import sys

from toolyard.cli import main

__all__: list[str] = []

sys.exit(main())
