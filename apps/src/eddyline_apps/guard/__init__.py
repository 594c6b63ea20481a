"""The guard of a web server: live request rates from its access log, and a list of whom to block.

`guard.sql` holds the views; it is plain Spark SQL that users can read and change.
"""

from importlib import resources

__all__ = ["script"]


def script() -> str:
    """Return the text of the views.

    Example:
        >>> "CREATE VIEW block_list" in script()
        True
    """
    return resources.files(__name__).joinpath("guard.sql").read_text(encoding="utf-8")
