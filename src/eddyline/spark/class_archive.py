"""An archive of the classes that Spark loads: with it a session starts some seconds faster.

It is Java's own dynamic archive of class data (JEP 350). The JVM checks that the archive was made by the same JVM with
the same jars, and goes on without it otherwise.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from errno import EACCES
from pathlib import Path

from pyspark import __version__
from pyspark.find_spark_home import _find_spark_home

from eddyline.spark.java import any_java

# a JVM that can't use the archive says so on its standard output
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"


def archive_path() -> Path | None:
    """Return where the archive for this Spark and this Java is kept, whether it is there or not.

    It belongs to the Python environment, with which it goes. None if the JVM's library isn't where it usually is
    beside the program `java`.
    """
    library = _library()
    if library is None:
        return None
    state = library.stat()
    # layers of images have times in whole seconds
    jvm = f"{__version__} {library} {state.st_size} {int(state.st_mtime)}"
    name = f"spark-{_short(_find_spark_home())}-{_short(jvm)}.jsa"
    return Path(sys.prefix, "share", "eddyline", name)


def make_base_archive() -> None:
    """Let Java make the archive of its own classes, on which that of Spark's stands, if it came without one.

    Raises:
        PermissionError: Java can't write it into its own folder.
    """
    java, library = any_java(), _library()
    if java and library and not (base := library.with_name("classes.jsa")).exists():
        subprocess.run([java, "-Xshare:dump"], capture_output=True, check=False)
        if not base.exists():
            raise PermissionError(EACCES, "Java can't write", str(base))


def archives_of_this_spark(path: Path) -> list[Path]:
    """Return the archives of the same Spark as that of `path`: its own, and those of Javas before."""
    spark = path.stem.rpartition("-")[0]
    return sorted(path.parent.glob(f"{spark}-*{path.suffix}"))


def archive_options() -> str:
    """Return the options by which a JVM starts with the archive; empty if there is none."""
    path = archive_path()
    # spaces would end the option
    if path is None or " " in str(path) or not path.exists():
        return ""
    return f"{_QUIET} -XX:SharedArchiveFile={path}"


def recording_options(path: Path) -> str:
    """Return the options by which a JVM writes the archive when it ends."""
    return f"-XX:ArchiveClassesAtExit={path}"


def _library() -> Path | None:
    java = any_java()
    library = java and Path(os.path.realpath(java)).parents[1] / "lib/server/libjvm.so"
    return library.resolve() if library and library.exists() else None


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
