"""Durable bytes: each file appears whole under its name, or not at all."""

from __future__ import annotations

import json
import os
import shutil
import uuid
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlparse

from eddyline.errors import StateError, StorageError

UNFINISHED = ".tmp"


class Files:
    """Files of one storage folder, by names relative to it.

    A write goes to a temporary name, is flushed to the disk, renamed, and the folder is flushed:
    a crash leaves the old file or the new one. `step` is called before each effect on the disk;
    tests replace it to fail there.

    Attributes:
        unflushed: beginnings of names whose files aren't flushed when they are written: they
            outlive the process, but perhaps not the machine.
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
        self.unflushed: tuple[str, ...] = ()

    def step(self, what: str, name: str) -> None:
        """Hook before each effect on the disk; nothing here."""

    def path(self, name: str) -> str:
        """The absolute path of a name."""
        return os.path.join(self.root, name)

    def write(self, name: str, fill: Callable[[BinaryIO], Any], *, durable: bool = True) -> int:
        """Make the file `name` out of what `fill` writes; returns its size in bytes."""
        target = self.path(name)
        durable = durable and not name.startswith(self.unflushed)
        suffix = f".{uuid.uuid4().hex}{UNFINISHED}"
        try:
            with told(name):
                self.step("write", name)
                with open(target + suffix, "wb") as stream:
                    fill(stream)
                    stream.flush()
                    if durable:
                        os.fsync(stream.fileno())
                    size = stream.tell()
                self.step("rename", name)
                os.replace(target + suffix, target)
        except BaseException:
            with suppress(StorageError):
                self.remove(name + suffix)
            raise
        if durable:
            self.sync(os.path.dirname(name))
        return size

    def append(self, name: str, data: bytes | memoryview, at: int) -> None:
        """Put `data` behind the first `at` bytes of a file, which is made if it is missing.

        What stood behind them, left by a write that broke off, is cut. Durable after `sync`.
        """
        with told(name):
            handle = os.open(self.path(name), os.O_RDWR | os.O_CREAT, 0o644)
            try:
                if os.fstat(handle).st_size > at:
                    self.step("cut", name)
                    os.ftruncate(handle, at)
                self.step("append", name)
                rest = memoryview(data)
                while rest.nbytes:
                    written = os.pwrite(handle, rest, at)
                    rest, at = rest[written:], at + written
            finally:
                os.close(handle)

    def write_json(self, name: str, value: object, *, durable: bool = True) -> None:
        """Write a JSON document with its checksum in front."""
        body = json.dumps(value, separators=(",", ":")).encode()
        head = f"{zlib.crc32(body):08x} ".encode()
        self.write(name, lambda stream: stream.write(head + body), durable=durable)

    def read_json(self, name: str) -> Any:
        """Read a JSON document; StateError DAMAGED_FILE if it is missing or its checksum is wrong."""
        try:
            data = Path(self.path(name)).read_bytes()
        except FileNotFoundError as error:
            raise damaged(name, "it is missing") from error
        body = data[9:]
        if data[:9] != f"{zlib.crc32(body):08x} ".encode():
            raise damaged(name, "it doesn't match its checksum")
        return json.loads(body)

    def sync(self, name: str) -> None:
        """Flush a file, or the entries of a folder, to the disk."""
        with told(name):
            self.step("sync", name)
            _sync(self.path(name))

    def make_folder(self, name: str) -> None:
        """Make a folder and those above it, durably; no error if it is there."""
        target = os.path.normpath(self.path(name))
        if os.path.isdir(target):
            return
        made = []
        while not os.path.isdir(target):
            made.append(target)
            target = os.path.dirname(target)
        with told(name):
            self.step("make", name)
            for folder in reversed(made):
                os.makedirs(folder, exist_ok=True)
                _sync(os.path.dirname(folder))

    def exists(self, name: str) -> bool:
        """Whether there is such a file or folder."""
        return os.path.exists(self.path(name))

    def names(self, folder: str) -> list[str]:
        """Names in a folder, sorted, without those of unfinished writes; empty if there is none."""
        try:
            found = os.listdir(self.path(folder))
        except FileNotFoundError:
            return []
        return sorted(name for name in found if not name.endswith(UNFINISHED))

    def remove_unfinished(self, folder: str) -> None:
        """Remove what writes that never ended have left in a folder."""
        target = self.path(folder)
        for name in os.listdir(target) if os.path.isdir(target) else ():
            if name.endswith(UNFINISHED):
                self.remove(os.path.join(folder, name))

    def remove(self, name: str) -> None:
        """Remove a file or a folder with all in it; no error if it is missing."""
        target = self.path(name)
        with told(name):
            self.step("remove", name)
            if os.path.isdir(target):
                shutil.rmtree(target, ignore_errors=True)
            else:
                Path(target).unlink(missing_ok=True)


class Summing:
    """A stream that keeps the CRC-32 of what is written through it."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream
        self.crc = 0
        self.closed = False

    def write(self, data: Any) -> int:
        self.crc = zlib.crc32(data, self.crc)
        return self.stream.write(data)

    def flush(self) -> None:
        self.stream.flush()


def checksum(path: str) -> int:
    """CRC-32 of a file."""
    value = 0
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            value = zlib.crc32(block, value)
    return value


def damaged(name: str, why: str, hint: str = "restore it from a copy") -> StateError:
    """The error that names a file of the storage which is not what was written."""
    return StateError(
        f"a file of the storage is damaged: {why}",
        condition="DAMAGED_FILE",
        file=name,
        hint=hint,
    )


@contextmanager
def told(name: str) -> Iterator[None]:
    """What the system says about a file becomes an error of ours: StorageError WRITE_FAILED."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"the storage can't be written: {error}",
            condition="WRITE_FAILED",
            file=name,
            hint="mend the cause and make the same call again: nothing is half written",
        ) from error


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
