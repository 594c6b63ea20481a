"""`eddyline guard` as a process of its own; the arguments are those of the command."""

from __future__ import annotations

import argparse
import sys

from eddyline_apps import guard

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    guard.add_arguments(parser)
    sys.exit(guard.run(parser.parse_args()))
