"""The command line: each command is one call on an engine or on the catalog of its storage.

Exit codes: 0 done; 1 `verify` found a difference or a view that fails, `doctor` found something missing, or the engine refused
a request or has not answered in time; 2 refused (one message on standard error); 130 interrupted.
"""

from eddyline.cli.commands import main

__all__ = ["main"]
