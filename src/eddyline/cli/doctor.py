"""The command `doctor`: checks what this machine lacks to run Eddyline, and says what to do."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import requires
from pathlib import Path

from eddyline.cli.arguments import Commands, add_command
from eddyline.cli.output import add_format, show_rows
from eddyline.cli.text import size
from eddyline.errors import EXTRAS, has_module, installed_version
from eddyline.spark.java import ADVICE, VERSION_MIN, any_java

OK, MISSING, OPTIONAL = "ok", "MISSING", "optional"
FREE_BYTES_MIN = 1 << 30
MEMORY_BYTES_MIN = 2 << 30


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check, and what to do if it isn't good enough."""

    check: str
    state: str
    found: str
    advice: str = ""


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    purpose = "check what Eddyline needs of this machine, and say what to do; exit code 1 if something is missing"
    parser = add_command(commands, "doctor", _doctor, purpose)
    parser.add_argument("--storage", metavar="DIR", help="also check this folder")
    add_format(parser)


def _doctor(args: argparse.Namespace) -> int:
    findings = list(examine(args.storage))
    show_rows(args.format, ("check", "state", "found", "advice"), [asdict(one) for one in findings])
    return int(any(one.state == MISSING for one in findings))


def examine(storage: str | None = None) -> Iterator[Finding]:
    """Yield a finding for each thing that Eddyline needs or can use.

    Args:
        storage: a folder that is there or is to be made; None to leave it out.
    """
    yield Finding("Python", OK, ".".join(map(str, sys.version_info[:3])))
    yield _worker_python()
    yield _spark()
    yield _java()
    yield _class_archive()
    yield _memory()
    yield _folder("temporary files", tempfile.gettempdir())
    if storage is not None:
        yield _folder("storage", storage)
    yield _loopback()
    for extra, modules in EXTRAS.items():
        yield _extra(extra, modules)


def _worker_python() -> Finding:
    """Spark's workers must run the Python version of the driver."""
    name = "PYSPARK_PYTHON"
    chosen = os.environ.get(name)
    if chosen is None:
        return Finding(name, OK, "not set: sessions of Eddyline take this Python")
    wanted = "{}.{}".format(*sys.version_info[:2])
    command = [chosen, "-c", "import sys; print('{}.{}'.format(*sys.version_info[:2]))"]
    found = _output(command).strip()
    if found == wanted:
        return Finding(name, OK, chosen)
    advice = f"unset it, or set it to {sys.executable}"
    return Finding(name, MISSING, f"{chosen}: {found or 'does not run'}, not {wanted}", advice)


def _spark() -> Finding:
    wanted = next(
        (one.split(";")[0] for one in requires("eddyline") or () if re.match(r"pyspark\b", one)),
        "pyspark",
    )
    if found := installed_version("pyspark"):
        return Finding("Spark", OK, found)
    return Finding("Spark", MISSING, "none", f"pip install '{wanted}'")


def _java() -> Finding:
    java = any_java()
    if java is None:
        return Finding("Java", MISSING, "none on the PATH, and JAVA_HOME is not set", ADVICE)
    first = (_output([java, "-version"]).splitlines() or [""])[0]
    found = re.search(r'version "(\d+)', first)
    if found is None:
        return Finding("Java", MISSING, f"{java} does not run", f"correct JAVA_HOME, or {ADVICE}")
    if int(found[1]) < VERSION_MIN:
        return Finding("Java", MISSING, first, ADVICE)
    return Finding("Java", OK, first)


def _class_archive() -> Finding:
    check = "class archive"
    if has_module("pyspark"):
        from eddyline.spark.class_archive import archive_path

        path = archive_path()
        if path is not None and path.exists():
            return Finding(check, OK, f"{size(path.stat().st_size)} of Spark's classes")
    advice = "eddyline warm-up, if Spark should start faster"
    return Finding(check, OPTIONAL, "none of Spark's classes", advice)


def _memory() -> Finding:
    try:
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):  # not on every system
        return Finding("memory", OK, "unknown")
    found = f"{size(whole)}, {size(free)} free"
    if whole >= MEMORY_BYTES_MIN:
        return Finding("memory", OK, found)
    return Finding("memory", MISSING, found, f"Spark needs {size(MEMORY_BYTES_MIN)} at least")


def _folder(check: str, path: str) -> Finding:
    place = Path(path).absolute()
    while not place.exists():  # it will be made
        place = place.parent
    if not os.access(place, os.W_OK):
        return Finding(check, MISSING, f"{place} can't be written", "choose another folder")
    free = shutil.disk_usage(place).free
    found = f"{path}: {size(free)} free"
    if free >= FREE_BYTES_MIN:
        return Finding(check, OK, found)
    return Finding(check, MISSING, found, f"free {size(FREE_BYTES_MIN)} at least")


def _loopback() -> Finding:
    check = "loopback"
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            return Finding(check, OK, f"127.0.0.1 has free ports, as {server.getsockname()[1]}")
    except OSError as error:
        return Finding(check, MISSING, str(error), "allow programs to listen on 127.0.0.1")


def _extra(extra: str, modules: tuple[str, ...]) -> Finding:
    lacking = [module for module in modules if not has_module(module)]
    if not lacking:
        return Finding(f"[{extra}]", OK, "installed")
    advice = f"pip install 'eddyline[{extra}]' if you want it"
    return Finding(f"[{extra}]", OPTIONAL, f"without {', '.join(lacking)}", advice)


def _output(command: list[str]) -> str:
    """Return what a program prints; empty if it can't be run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout + done.stderr
