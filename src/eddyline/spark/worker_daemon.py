"""The process that Spark's Python workers are forked from: PySpark's own, which starts faster.

Spark names it in `spark.python.daemon.module`, and runs it as a program. Sessions that this package makes use it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

_SOURCES = ("pyspark", "python", "lib")


def without_archives(path: Sequence[str]) -> list[str]:
    """Return a path of modules without the archives of PySpark, and of py4j, that the same modules lie beside.

    Spark puts these archives first. They hold sources only, which Python then compiles in each process; a package that
    pip has installed has them compiled.

    Example:
        >>> without_archives(["/nowhere/pyspark/python/lib/pyspark.zip", "/home/me"])
        ['/nowhere/pyspark/python/lib/pyspark.zip', '/home/me']
    """

    def superfluous(name: str) -> bool:
        archive = Path(name)
        if archive.suffix != ".zip" or archive.parts[-4:-1] != _SOURCES:
            return False
        site = archive.parents[3]
        package = archive.name.partition("-")[0].removesuffix(".zip")
        return str(site) in path and (site / package / "__init__.py").exists()

    return [name for name in path if not superfluous(name)]


if __name__ == "__main__":
    sys.path[:] = without_archives(sys.path)
    from pyspark.daemon import manager

    manager()
