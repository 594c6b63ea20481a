"""Merges old entries of a redo log, so that a long log has few files."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Container

from eddyline.changes import Epoch
from eddyline.source.log_entries import AFTER, LogEntries, as_document, logging_damage
from eddyline.source.log_files import in_fewer_files, new_file
from eddyline.source.log_index import Index, is_entry, mergeable, numbered_files

_MERGES_MAX = 4  # a call


def merge_entries(log: LogEntries, end: int, epoch: Epoch, oldest: Epoch) -> None:
    """Merge old entries into fewer files; see `RedoLog.merge`."""
    with log.lock:
        if log.index().replaced:
            _remove_merged(log, oldest)
        with logging_damage("merged"):
            for _ in range(_MERGES_MAX):
                numbers = mergeable(log.index(), end)
                if not numbers:
                    return
                with log.changing() as index:
                    _merge(log, index, numbers, epoch)


def _merge(log: LogEntries, index: Index, numbers: list[int], epoch: Epoch) -> None:
    """Merge consecutive entries into one, under the number of the last."""
    first, last = index.merged.get(numbers[0], numbers[0]), numbers[-1]
    # a merged entry of which a part was forgotten has lost the files of that part
    segments = list(log.within(index, max(first, index.start), last + 1))
    files = log.files.flushing()  # the merged entries may have been flushed before
    segments = in_fewer_files(files, lambda: new_file(log.folder, last), segments)
    stored = [{**as_document(one), "watermark": one.watermark} for one in segments]
    with files.committing():
        document = {"epoch": epoch, AFTER: index.before(first), "segments": stored}
        files.write_json(log.entry_file(last, first), document)
    for number in numbers:
        index.merged.pop(number, None)
    at = bisect_left(index.entries, numbers[0])
    del index.entries[at : at + len(numbers) - 1]
    index.merged[last], index.replaced = first, True


def _remove_merged(log: LogEntries, oldest: Epoch) -> None:
    """Remove the files of entries that were merged in epochs before `oldest`."""
    with log.changing() as index:
        replaced: dict[int, list[str]] = {}
        for name, number in numbered_files(log.files.names(log.folder)):
            holder = index.holder(number)
            if holder in index.merged:
                replaced.setdefault(holder, []).append(name)
        waiting = set()
        for last, names in replaced.items():
            entry = log.entry_file(last, index.merged[last]).removeprefix(f"{log.folder}/")
            # documents are removed last: where only the merged one is left, its parts are gone
            if sum(map(is_entry, names)) == 1:
                continue
            document = log.files.read_json(f"{log.folder}/{entry}")
            if document["epoch"] >= oldest:
                waiting.add(last)
                continue
            kept = {entry, *(os.path.basename(one["file"]) for one in document["segments"])}
            for name in sorted(set(names) - kept, key=is_entry):
                log.files.remove(f"{log.folder}/{name}")
        index.replaced = bool(waiting)
        _remove_needless_watermarks(log, index, waiting)


def _remove_needless_watermarks(log: LogEntries, index: Index, waiting: Container[int]) -> None:
    """Remove the watermarks before that of the last of the merged entries that the log begins with.

    Merged entries hold the watermarks of their segments themselves.
    """
    end = 0
    for number in index.entries:
        if number not in index.merged or number in waiting:
            break
        end = number
    log.drop_watermarks(index, end)
