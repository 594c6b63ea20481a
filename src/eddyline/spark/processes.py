"""What this process costs, with its JVM and Python workers, from Linux's /proc."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def tree_cpu_seconds() -> float:
    """Return CPU seconds of this process and its descendants (the JVM, Python workers).

    Ended descendants are included. Without /proc, only this process and its ended children count.
    """
    return tree_usage()[0]


def tree_rss() -> tuple[int, int]:
    """Return resident bytes of this process with its descendants, and of this one; 0 without /proc."""
    return tree_usage()[1:]


def tree_usage() -> tuple[float, int, int]:
    """Return what `tree_cpu_seconds` and `tree_rss` return, from one look at the processes."""
    tree = process_tree()
    if not tree:
        times = os.times()
        own = times.user + times.system + times.children_user + times.children_system
        return own, 0, 0
    # fields 11 to 14: user and system time, of the process and of its ended children
    ticks = sum(int(field) for fields in tree.values() for field in fields[11:15])
    page = os.sysconf("SC_PAGE_SIZE")
    sizes = {process: int(fields[21]) * page for process, fields in tree.items()}
    return ticks / os.sysconf("SC_CLK_TCK"), sum(sizes.values()), sizes[os.getpid()]


def process_tree() -> dict[int, list[str]]:
    """Return the fields of /proc/<pid>/stat after the name, of this process and its descendants; none without /proc."""
    found: dict[int, list[str]] = {}
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir() if Path("/proc/self/stat").exists() else ():
        # A process may end between the listing and the read.
        with suppress(OSError):
            if entry.name.isdigit():
                # The name comes before, in parentheses, and may contain spaces.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry.name))
                found[int(entry.name)] = fields
    tree, waiting = {}, [os.getpid()]
    while waiting:
        process = waiting.pop()
        if process in found:
            tree[process] = found[process]
        waiting += children.get(process, [])
    return tree
