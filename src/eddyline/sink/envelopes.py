"""The formats of messages on a Kafka topic: converts changes to messages, and messages back to rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from eddyline.changes import AFTER, BEFORE, CHANGE_TYPE, COMMIT_VERSION, DELETE, INSERT
from eddyline.sink.json_rows import json_rows

Sent = tuple[str | None, str | None]
"""A message: key and value; without a value it is a tombstone."""

_CONNECTOR = "eddyline"
_PARSE = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Texts:
    """Rows as JSON: the key and the whole row of each. The keys of a view without a key are None."""

    keys: list[str | None]
    rows: list[str]

    @staticmethod
    def of(rows: pa.Table, key: tuple[str, ...] | None) -> Texts:
        """Return the rows of a table as JSON."""
        keys: list[str | None] = (
            [None] * rows.num_rows if key is None else json_rows(rows.select(list(key))).to_list()
        )
        return Texts(keys, json_rows(rows).to_list())

    def chosen(self, places: Iterable[int]) -> Texts:
        """Return some of the rows."""
        places = list(places)
        return Texts([self.keys[i] for i in places], [self.rows[i] for i in places])


@dataclass(frozen=True, slots=True)
class Edit:
    """What changes: rows as in `KeyedChanges`. A row of `before` can be unknown: None."""

    deleted_keys: list[str | None]
    deleted: list[str | None]
    keys: list[str | None]
    before: list[str | None]
    after: list[str]
    inserted: Texts


@dataclass(slots=True)
class Content:
    """The rows that the messages of a topic add up to.

    Attributes:
        rows: by key the last row; None for a message that isn't a row in this form.
        counts: for changes that are added up, how often each row occurs with its key.
        partitions: by key the partition of the last message.
        foreign: whether the topic has messages that can't be added up.
    """

    rows: dict[str, str | None] = field(default_factory=dict)
    counts: dict[tuple[str | None, str], int] = field(default_factory=dict)
    partitions: dict[str | None, int] = field(default_factory=dict)
    foreign: bool = False


@dataclass(frozen=True, slots=True)
class Stamp:
    """The properties of a delivery that its messages contain."""

    sink: str
    version: str
    epoch: int
    time_ms: int


class Envelope(Protocol):
    """A format of messages."""

    @property
    def overhead(self) -> int:
        """The maximum number of bytes of a message besides one key and one row."""

    @property
    def topic(self) -> Mapping[str, str]:
        """The settings of a topic that is created."""

    def messages(self, edit: Edit, stamp: Stamp, size: int) -> list[Sent]:
        """Return messages of changes.

        Args:
            size: the most bytes of a message; leave out of a longer one what can be left out.
        """

    def absorb(self, content: Content, key: str | None, value: str | None) -> None:
        """Add a message of the topic to its content."""

    def difference(self, content: Content, wanted: Texts) -> Edit:
        """Return the changes that lead from a topic's content to the wanted rows."""


class Upsert:
    """The key of the view as key, the row as value, and a tombstone for a deleted row."""

    overhead = 0
    topic: Mapping[str, str] = {"cleanup.policy": "compact"}

    def messages(self, edit: Edit, stamp: Stamp, size: int) -> list[Sent]:
        gone: list[Sent] = [(key, None) for key in edit.deleted_keys]
        changed = zip(edit.keys, edit.after, strict=True)
        return [*gone, *changed, *zip(edit.inserted.keys, edit.inserted.rows, strict=True)]

    def absorb(self, content: Content, key: str | None, value: str | None) -> None:
        if key is None:
            content.foreign = True
        elif value is None:
            content.rows.pop(key, None)
        else:
            content.rows[key] = value

    def difference(self, content: Content, wanted: Texts) -> Edit:
        return _by_key(content, wanted)


class Debezium:
    """Events as those of Debezium: `before`, `after` and `op`; after each delete a tombstone."""

    overhead = 600
    topic: Mapping[str, str] = {"cleanup.policy": "compact"}

    def messages(self, edit: Edit, stamp: Stamp, size: int) -> list[Sent]:
        source = json.dumps(
            {
                "version": stamp.version,
                "connector": _CONNECTOR,
                "name": stamp.sink,
                "ts_ms": stamp.time_ms,
                "epoch": stamp.epoch,
            },
            ensure_ascii=False,
        )
        end = f',"source":{source},"ts_ms":{stamp.time_ms}}}'

        def event(key: str | None, before: str | None, after: str, op: str) -> Sent:
            value = f'{{"before":{before or "null"},"after":{after},"op":"{op}"{end}'
            if len(value) * 4 > size and len(value.encode()) + len((key or "").encode()) > size:
                # as Debezium does where only the key of the old row is known
                value = f'{{"before":{key},"after":{after},"op":"{op}"{end}'
            return key, value

        sent: list[Sent] = []
        for key, row in zip(edit.deleted_keys, edit.deleted, strict=True):
            sent += [event(key, row or _object(key), "null", "d"), (key, None)]
        changed = zip(edit.keys, edit.before, edit.after, strict=True)
        sent += [event(key, old, new, "u") for key, old, new in changed]
        come = zip(edit.inserted.keys, edit.inserted.rows, strict=True)
        sent += [event(key, None, row, "c") for key, row in come]
        return sent

    def absorb(self, content: Content, key: str | None, value: str | None) -> None:
        if key is None:
            content.foreign = True
        elif value is None:
            content.rows.pop(key, None)
        else:
            after = _after(value)
            if after == "null":
                content.rows.pop(key, None)
            else:
                content.rows[key] = after

    def difference(self, content: Content, wanted: Texts) -> Edit:
        return _by_key(content, wanted)


class Changelog:
    """The row with `_change_type` and `_commit_version` as value: all messages add up to the view."""

    overhead = 100
    # without its first changes the rest doesn't add up
    topic: Mapping[str, str] = {"cleanup.policy": "delete", "retention.ms": "-1"}

    _START = f',"{CHANGE_TYPE}":"'
    _SIGNS: Mapping[str, int] = {INSERT: 1, AFTER: 1, DELETE: -1, BEFORE: -1}

    def messages(self, edit: Edit, stamp: Stamp, size: int) -> list[Sent]:
        end = f'","{COMMIT_VERSION}":{stamp.epoch}}}'
        sent: list[Sent] = []

        def add(key: str | None, row: str | None, kind: str) -> None:
            if row is not None:
                sent.append((key, f"{row[:-1]}{self._START}{kind}{end}"))

        for key, row in zip(edit.deleted_keys, edit.deleted, strict=True):
            add(key, row, DELETE)
        for key, old, new in zip(edit.keys, edit.before, edit.after, strict=True):
            add(key, old, BEFORE)
            add(key, new, AFTER)
        for key, row in zip(edit.inserted.keys, edit.inserted.rows, strict=True):
            add(key, row, INSERT)
        return sent

    def absorb(self, content: Content, key: str | None, value: str | None) -> None:
        # nothing inside of the row looks like this: its quotes have a backslash
        row, start, rest = (value or "").rpartition(self._START)
        sign = self._SIGNS.get(rest.partition('"')[0]) if start else None
        if sign is None:
            content.foreign = True
            return
        place = (key, row + "}")
        content.counts[place] = content.counts.get(place, 0) + sign

    def difference(self, content: Content, wanted: Texts) -> Edit:
        left = {place: count for place, count in content.counts.items() if count > 0}
        come = []
        for i, place in enumerate(zip(wanted.keys, wanted.rows, strict=True)):
            count = left.get(place, 0)
            if count:
                left[place] = count - 1
            else:
                come.append(i)
        gone = [place for place, count in left.items() for _ in range(count)]
        keys, rows = [key for key, _ in gone], [row for _, row in gone]
        return Edit(keys, list(rows), [], [], [], wanted.chosen(come))


ENVELOPES: Mapping[str, Envelope] = {
    "upsert": Upsert(),
    "debezium": Debezium(),
    "changelog": Changelog(),
}
"""The forms by the value of the option `envelope`."""


def _by_key(content: Content, wanted: Texts) -> Edit:
    left = dict(content.rows)
    changed: list[int] = []
    before: list[str | None] = []
    come: list[int] = []
    for i, key in enumerate(wanted.keys):
        assert key is not None
        if key not in left:
            come.append(i)
        elif (old := left.pop(key)) != wanted.rows[i]:
            changed.append(i)
            before.append(old)
    new = wanted.chosen(changed)
    return Edit(list(left), list(left.values()), new.keys, before, new.rows, wanted.chosen(come))


def _object(key: str | None) -> str | None:
    """Return a key if it is JSON."""
    with suppress(ValueError):
        json.loads(key or "")
        return key
    return None


def _after(value: str) -> str | None:
    """Return the row after a change of Debezium's form; None if the message has another form."""
    try:
        if value.startswith('{"before":'):
            _, end = _PARSE.raw_decode(value, len('{"before":'))
            start = end + len(',"after":')
            _, end = _PARSE.raw_decode(value, start)
            return value[start:end]
        after = json.loads(value)["after"]
        return json.dumps(after, ensure_ascii=False, separators=(",", ":"))
    except (ValueError, KeyError, TypeError):
        return None
