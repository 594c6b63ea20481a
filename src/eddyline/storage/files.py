"""Durable files: each file appears complete under its name, or not at all."""

from __future__ import annotations

import copy
import errno
import json
import os
import shutil
import time
import uuid
import zlib
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlparse

from eddyline.errors import StateError, StorageError
from eddyline.storage.fence import Fence
from eddyline.storage.os_errors import storage_errors

UNFINISHED = ".tmp"
SYNCS_AT_ONCE = 8
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EMLINK)


def flushing_threads() -> Executor:
    """Return threads that flush files, to be used more than once."""
    return ThreadPoolExecutor(SYNCS_AT_ONCE, "eddyline-sync")


class Files:
    """The files of one storage folder, by names relative to it.

    `write` writes to a temporary name, flushes the file to the disk, renames it, and flushes the
    folder. So a crash leaves either the old file or the new one. `step` is called before each
    effect on the disk; tests replace it to inject failures.

    Args:
        root: path or file: URL of the folder.

    Attributes:
        root: absolute path of the folder.
        unflushed: prefixes of names whose files aren't flushed when they are written. They survive
            a crash of the process, but perhaps not of the machine.
        fence: checked before each commit; None where nobody else can write.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        root = os.fspath(root)
        parsed = urlparse(root)
        if parsed.scheme not in ("", "file"):
            raise StorageError(
                f"storage {root!r} is not on a file system that this version can use",
                condition="UNSUPPORTED_STORAGE",
                hint="give a local or mounted path; all workers must see it under that path",
            )
        path = parsed.path if parsed.scheme else root
        if not path.strip() or "\0" in path:
            raise StorageError(
                f"{root!r} is not the path of a folder",
                condition="UNSUPPORTED_STORAGE",
                hint="give a local or mounted path",
            )
        self.root = os.path.abspath(path)
        self.unflushed: tuple[str, ...] = ()
        self.fence: Fence | None = None

    @property
    def writer(self) -> str:
        """The id of the engine that writes here; empty if unknown."""
        return "" if self.fence is None else self.fence.writer

    def flushing(self) -> Files:
        """Return an object for the same files that flushes each file when it is written."""
        files = copy.copy(self)
        files.unflushed = ()
        return files

    def flushed_later(self) -> Files:
        """Return an object for the same files that flushes none until `sync_all`."""
        files = copy.copy(self)
        files.unflushed = ("",)
        return files

    def step(self, what: str, name: str) -> None:
        """Do nothing; tests override this hook, which is called before each effect on the disk."""

    def path(self, name: str) -> str:
        """Return the absolute path of a name."""
        return os.path.join(self.root, name)

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Check the fence, and hold it during the context, in which the caller commits.

        Raises:
            StateError: FENCED, another writer has opened the storage since.
        """
        if self.fence is None:
            yield
            return
        with self.fence.passing():
            yield

    def write(
        self,
        name: str,
        fill: Callable[[BinaryIO], Any],
        *,
        durable: bool = True,
        new: bool = False,
        undo: bool = False,
    ) -> int:
        """Create or replace a file atomically with what `fill` writes; return its size in bytes.

        Args:
            new: never replace a file.
            undo: remove the file again if its name can't be flushed to the disk; only for a file that no other
                process reads yet.

        Raises:
            StorageError: the file can't be written; the old one is unchanged. If only its name couldn't be flushed,
                it is there without `undo`; with it, where it can't be removed, the condition is WRITE_UNCERTAIN.
            FileExistsError: the file exists, and `new` is set.
        """
        target = self.path(name)
        durable = durable and not name.startswith(self.unflushed)
        suffix = f".{uuid.uuid4().hex}{UNFINISHED}"
        try:
            with storage_errors(name):
                self.step("write", name)
                with open(target + suffix, "wb") as stream:
                    fill(stream)
                    stream.flush()
                    if durable:
                        os.fsync(stream.fileno())
                    size = stream.tell()
                self.step("rename", name)
                if new:
                    publish(target + suffix, target)
                else:
                    os.replace(target + suffix, target)
        except BaseException:
            with suppress(StorageError):
                self.remove(name + suffix)
            raise
        if durable:
            try:
                self.sync(os.path.dirname(name))
            except StorageError as error:
                if undo:
                    self._undo(name, error)
                raise
        return size

    def _undo(self, name: str, error: StorageError) -> None:
        """Remove a file whose name couldn't be flushed; raise StorageError WRITE_UNCERTAIN if that fails, too."""
        try:
            self.remove(name)
        except StorageError:
            raise StorageError(
                f"{error.message}; what was written is there, but may be lost with the machine",
                condition="WRITE_UNCERTAIN",
                file=name,
                hint="mend the disk, and look whether the rows are there before you write them again",
            ) from error
        with suppress(StorageError):  # or a power cut may bring the name back
            self.sync(os.path.dirname(name))

    def link(self, name: str, second: str) -> None:
        """Create a hard link, or a copy where the file system has no links. Durable after `sync`."""
        with storage_errors(second):
            self.step("link", second)
            try:
                os.link(self.path(name), self.path(second))
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                shutil.copyfile(self.path(name), self.path(second))
                sync_path(self.path(second))

    def rename(self, name: str, new: str) -> bool:
        """Rename a file; return False if it doesn't exist. Durable after `sync`."""
        with storage_errors(name):
            self.step("rename", name)
            try:
                os.rename(self.path(name), self.path(new))
            except FileNotFoundError:
                return False
        return True

    def append(self, name: str, data: bytes | memoryview, at: int) -> None:
        """Write `data` at offset `at` of a file; create the file if it is missing.

        Bytes after `at`, left by an interrupted write, are truncated. Durable after `sync`.
        """
        with storage_errors(name):
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

    def overwrite(self, name: str, data: bytes) -> None:
        """Write `data` over the first bytes of a file; create the file if it is missing.

        It takes no more room if the file is as long, so it succeeds on a full disk. It isn't flushed, and a reader may
        meet a part of it.
        """
        with storage_errors(name):
            self.step("overwrite", name)
            handle = os.open(self.path(name), os.O_WRONLY | os.O_CREAT, 0o644)
            try:
                os.pwrite(handle, data, 0)
            finally:
                os.close(handle)

    def write_json(
        self,
        name: str,
        value: object,
        *,
        durable: bool = True,
        new: bool = False,
        undo: bool = False,
    ) -> int:
        """Write a JSON document, preceded by its checksum, which is returned; see `write`."""
        body = json.dumps(value, separators=(",", ":")).encode()
        crc = zlib.crc32(body)
        head = f"{crc:08x} ".encode()
        self.write(
            name, lambda stream: stream.write(head + body), durable=durable, new=new, undo=undo
        )
        return crc

    def read_json(self, name: str) -> Any:
        """Read a JSON document.

        Raises:
            StateError: DAMAGED_FILE, the file is missing or doesn't match its checksum.
            StorageError: READ_FAILED, it can't be read now.
        """
        return json.loads(self.read_checked(name)[0])

    def read_checked(self, name: str) -> tuple[bytes, int]:
        """Read a JSON document that was written with its checksum; return its text and the checksum.

        Raises:
            StateError, StorageError: as `read_json`.
        """
        try:
            data = Path(self.path(name)).read_bytes()
        except FileNotFoundError as error:
            raise damaged(name, "it is missing") from error
        except OSError as error:
            raise unreadable(name, error) from error
        body = data[9:]
        crc = zlib.crc32(body)
        if data[:9] != f"{crc:08x} ".encode():
            raise damaged(name, "it doesn't match its checksum")
        return body, crc

    def sync(self, name: str) -> None:
        """Flush a file, or the entries of a folder, to the disk."""
        with storage_errors(name):
            self.step("sync", name)
            sync_path(self.path(name))

    def sync_all(self, names: Collection[str], threads: Executor | None = None) -> None:
        """Flush files and the entries of their folders, several at a time, which disks do faster.

        Args:
            threads: what does it; new threads, by default.
        """
        wanted = [name for name in names if not name.startswith(self.unflushed)]
        if not wanted:
            return
        with nullcontext(threads) if threads else flushing_threads() as pool:
            list(pool.map(self.sync, wanted))
        for folder in {os.path.dirname(name) for name in wanted}:
            self.sync(folder)

    def make_folder(self, name: str) -> None:
        """Create a folder and its parents, durably; does nothing if it exists.

        Raises:
            StorageError: it can't be made, or a file has its name.
        """
        target = os.path.normpath(self.path(name))
        if os.path.isdir(target):
            return
        missing = []
        while not os.path.isdir(target):
            missing.append(target)
            target = os.path.dirname(target)
        with storage_errors(name):
            self.step("make", name)
            for folder in reversed(missing):
                try:
                    os.makedirs(folder, exist_ok=True)
                except FileExistsError as error:  # a file has its name
                    text = os.strerror(errno.ENOTDIR)
                    raise NotADirectoryError(errno.ENOTDIR, text, folder) from error
                sync_path(os.path.dirname(folder))

    def exists(self, name: str) -> bool:
        """Whether a file or folder exists."""
        return os.path.exists(self.path(name))

    def names(self, folder: str) -> list[str]:
        """Return the sorted names in a folder, without unfinished writes; empty if it doesn't exist."""
        try:
            found = os.listdir(self.path(folder))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise unreadable(folder, error) from error
        return sorted(name for name in found if not name.endswith(UNFINISHED))

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the size in bytes of each file in a folder; empty if it doesn't exist."""
        try:
            with os.scandir(self.path(folder)) as found:
                return {entry.name: entry.stat().st_size for entry in found}
        except FileNotFoundError:
            return {}

    def remove_unfinished(self, folder: str, *, older_s: float = 0) -> None:
        """Remove the temporary files of interrupted writes from a folder.

        Args:
            older_s: leave those that were begun in the last seconds, which others may be writing.
        """
        target = self.path(folder)
        for name in os.listdir(target) if os.path.isdir(target) else ():
            path = os.path.join(target, name)
            if name.endswith(UNFINISHED) and not (older_s and _younger(path, older_s)):
                self.remove(os.path.join(folder, name))

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with its content; does nothing if it is missing."""
        target = self.path(name)
        with storage_errors(name):
            self.step("remove", name)
            if os.path.isdir(target):
                shutil.rmtree(target, ignore_errors=True)
            else:
                Path(target).unlink(missing_ok=True)


class Summing:
    """A stream that computes the CRC-32 of everything written to it.

    Attributes:
        crc: the checksum so far.
    """

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
    """Return the CRC-32 of a file."""
    value = 0
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            value = zlib.crc32(block, value)
    return value


def _younger(path: str, seconds: float) -> bool:
    try:
        return time.time() - os.stat(path).st_mtime < seconds
    except FileNotFoundError:
        return True


def damaged(name: str, why: str, hint: str = "restore it from a copy") -> StateError:
    """Return the error for a file of the storage that is damaged or missing."""
    return StateError(
        f"a file of the storage is damaged: {why}",
        condition="DAMAGED_FILE",
        file=name,
        hint=hint,
    )


def no_storage(root: str) -> StorageError:
    """Return the error for a folder that holds no storage."""
    return StorageError(
        "there is no stored engine",
        condition="NO_STORAGE",
        hint="give the folder that `eddyline run` was given",
        storage=root,
    )


def unreadable(name: str, error: OSError) -> StorageError:
    """Return the error for an existing file or folder that can't be read."""
    return StorageError(
        f"the storage can't be read: {error}",
        condition="READ_FAILED",
        file=name,
        hint="mend the cause (the disk, permissions, too many open files) and make the same call again",
    )


def folder_size(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Return the bytes and the number of all files in a folder, without those that are removed meanwhile."""
    size = count = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                size += os.stat(os.path.join(folder, name)).st_size
            except OSError:
                continue
            count += 1
    return size, count


def publish(unfinished: str, target: str) -> None:
    """Rename a finished file, but unlike `os.replace` never replace another one.

    Raises:
        FileExistsError: there is a file with that name.
    """
    try:
        os.link(unfinished, target)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # without hard links the check and the rename aren't atomic: two writers at the same moment both succeed
        if os.path.exists(target):
            raise FileExistsError(errno.EEXIST, "File exists", target) from None
        os.replace(unfinished, target)
    else:
        os.unlink(unfinished)


def sync_path(path: str) -> None:
    """Flush a file, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
