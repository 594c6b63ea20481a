"""Durable bytes: each file appears whole under its name, or not at all."""

from __future__ import annotations

import json
import os
import shutil
import uuid
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlparse

from eddyline.errors import StateError, StorageError


class Files:
    """Files of one storage folder, by names relative to it.

    A write goes to a temporary name, is flushed to the disk, renamed, and the folder is flushed:
    a crash leaves the old file or the new one. `step` is called before each effect on the disk;
    tests replace it to fail there.
    """

    def __init__(self, root: str) -> None:
        parsed = urlparse(root)
        if parsed.scheme not in ("", "file"):
            raise StorageError(
                f"storage {root!r} is not on a file system that this version can use",
                condition="UNSUPPORTED_STORAGE",
                hint="give a local or mounted path; all workers must see it under that path",
            )
        self.root = os.path.abspath(parsed.path if parsed.scheme else root)

    def step(self, what: str, name: str) -> None:
        """Hook before each effect on the disk; nothing here."""

    def path(self, name: str) -> str:
        """The absolute path of a name."""
        return os.path.join(self.root, name)

    def write(self, name: str, fill: Callable[[BinaryIO], Any], *, durable: bool = True) -> int:
        """Make the file `name` out of what `fill` writes; returns its size in bytes."""
        target = self.path(name)
        temporary = f"{target}.{uuid.uuid4().hex}.tmp"
        self.step("write", name)
        with open(temporary, "wb") as stream:
            fill(stream)
            stream.flush()
            if durable:
                os.fsync(stream.fileno())
            size = stream.tell()
        self.step("rename", name)
        os.replace(temporary, target)
        if durable:
            self.sync_folder(os.path.dirname(name))
        return size

    def write_json(self, name: str, value: object, *, durable: bool = True) -> None:
        """Write a JSON document with its checksum in front."""
        body = json.dumps(value, separators=(",", ":")).encode()
        head = f"{zlib.crc32(body):08x} ".encode()
        self.write(name, lambda stream: stream.write(head + body), durable=durable)

    def read_json(self, name: str) -> Any:
        """Read a JSON document; StateError DAMAGED_FILE if its checksum is wrong."""
        data = Path(self.path(name)).read_bytes()
        body = data[9:]
        if data[:9] != f"{zlib.crc32(body):08x} ".encode():
            raise StateError(
                "a file of the storage doesn't match its checksum",
                condition="DAMAGED_FILE",
                file=name,
                hint="restore it from a copy, or remove it to go back to the epoch before",
            )
        return json.loads(body)

    def sync_folder(self, name: str) -> None:
        """Flush a folder's entries to the disk."""
        handle = os.open(self.path(name), os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def make_folder(self, name: str) -> None:
        """Make a folder and those above it; no error if it is there."""
        os.makedirs(self.path(name), exist_ok=True)

    def exists(self, name: str) -> bool:
        """Whether there is such a file or folder."""
        return os.path.exists(self.path(name))

    def names(self, folder: str) -> list[str]:
        """Names in a folder, sorted, without those of unfinished writes; empty if there is none."""
        try:
            found = os.listdir(self.path(folder))
        except FileNotFoundError:
            return []
        return sorted(name for name in found if not name.endswith(".tmp"))

    def remove(self, name: str) -> None:
        """Remove a file or a folder with all in it; no error if it is missing."""
        self.step("remove", name)
        target = self.path(name)
        if os.path.isdir(target):
            shutil.rmtree(target, ignore_errors=True)
        else:
            Path(target).unlink(missing_ok=True)


def checksum(path: str) -> int:
    """CRC-32 of a file."""
    value = 0
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            value = zlib.crc32(block, value)
    return value
