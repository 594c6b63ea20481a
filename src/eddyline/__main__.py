"""`python -m eddyline` is the command `eddyline`."""

import sys

from eddyline.cli import main

sys.exit(main())
