"""Defines sinks, and delivers the changes of their views to them."""

from __future__ import annotations

import hashlib
import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from eddyline.answers.deliverer import STOP_S, Delivered, Deliverer
from eddyline.answers.delivery import CommittedChangelog, Delivery
from eddyline.answers.sinks import IDENTITY, sinks_status
from eddyline.api import drafts
from eddyline.api.formats import SINKS
from eddyline.api.paths import with_absolute_path
from eddyline.api.workspace import Workspace
from eddyline.arguments import wrong_argument
from eddyline.catalog.entries import COMMIT_INTERVAL, REJECTS, SINK, VIEW, Entry
from eddyline.changes import Epoch
from eddyline.errors import (
    CatalogError,
    EddylineError,
    condition_of,
    message_text,
    without_secrets,
)
from eddyline.runtime.compiler import CompiledPlan
from eddyline.sink.base import SinkFormat, Target, check_feed_columns, keep_none
from eddyline.sink.cursors import SINKS as FOLDER
from eddyline.sink.function import FUNCTION, FunctionSink
from eddyline.sink.json_rows import json_rows
from eddyline.sink.outbox import NO_VIEW, NotesFile, Outage, OutageFile, Outbox
from eddyline.sink.rows import with_commit
from eddyline.sink.secrets import check_secrets, filled_in, secret_values
from eddyline.source.dead_letters import Rejects
from eddyline.spark.intervals import interval_micros
from eddyline.spark.schema import arrow_schema, plain_schema
from eddyline.sql.names import check_name
from eddyline.state.manifest import committed_at

WAIT_S = 30.0
"""How long `advance` waits for sinks that don't fail."""

ON_REFUSED, STOP = "on_refused", "stop"

Function = Callable[[DataFrame, int], Any]

_LOG = logging.getLogger("eddyline.sinks")

_Followed: TypeAlias = tuple[str, tuple[int, ...] | None]
"""The id of a view, and the places of its key."""


class Sinks:
    """The sinks of a workspace. Each has a thread, so that none holds up epochs or other sinks.

    Args:
        report: called with the first error of an outage of a sink.
        delivered: called in a sink's thread with each delivery and each try that failed.
    """

    def __init__(
        self,
        workspace: Workspace,
        report: Callable[[Exception], None],
        delivered: Callable[[Delivered], None],
    ) -> None:
        self._workspace = workspace
        self._report = report
        self._delivered = delivered
        self._deliverers: dict[str, Deliverer] = {}
        self._ended: dict[str, Deliverer] = {}  # by sink the last one that was told to stop
        self._functions: dict[str, Function] = {}
        self._secrets: dict[str, list[str]] = {}  # by sink the values that messages may not show
        self._followed: dict[str, _Followed] = {}  # by sink what its thread follows

    def recover(self) -> None:
        """Remove leftovers of dropped sinks after a crash, and open the dead letters of the others."""
        workspace = self._workspace
        if not workspace.writes:
            return
        known = {sink.id for sink in workspace.catalog.sinks}
        for name in workspace.files.names(FOLDER):
            if name not in known and name != IDENTITY:
                workspace.files.remove(f"{FOLDER}/{name}")
        for sink in workspace.catalog.sinks:
            self._connect_letters(sink)

    def sink(self, name: str, view: str, format: str, options: Mapping[str, object]) -> Entry:
        """Define a sink and start it, or return one that exists; see `Engine.sink`."""
        if not (view or format or options):
            return self._workspace.catalog.get_sink(name)
        return self._define(name, view, format.lower(), given_options(options))

    def foreach_epoch(self, name: str, view: str, function: Function) -> Entry:
        """Define a sink that calls a function; see `View.foreach_epoch`."""
        return self._define(name, view, FUNCTION, {}, function)

    def drop(self, name: str, *, if_exists: bool, wait: bool = True) -> None:
        """Remove a sink; its target stays as it is.

        Args:
            wait: for the delivery that is under way, `STOP_S` at most. The caller may not hold the workspace's lock then.
        """
        workspace = self._workspace
        with workspace.lock:
            workspace.check_writable()
            if if_exists and workspace.catalog.find_sink(name) is None:
                return
            sink = workspace.catalog.get_sink(name)
            letters = workspace.catalog.letters_of(sink)
            catalog = workspace.catalog.drop_sink(name)
            self._abandon(sink.id)
            workspace.save(catalog)
            workspace.files.remove(f"{FOLDER}/{sink.id}")
            if letters is not None:
                workspace.forget(letters)
            ended = self._ended.pop(sink.id, None)
        if wait and ended is not None:
            ended.finish(STOP_S)

    def alter(self, name: str, options: Mapping[str, object]) -> None:
        """Replace the options of a sink, which goes on from where it was; see `Sink.alter`."""
        workspace = self._workspace
        with workspace.lock:
            workspace.check_writable()
            present = workspace.catalog.get_sink(name)
            given = with_absolute_path(present.format, given_options(options), present)
            if present.format == FUNCTION:
                raise wrong_argument("the sink", name, "a function has no options")
            for option in _format(present.format).fixed:
                if given.get(option) != present.options.get(option):
                    hint = f"sink {present.name} keeps it: create another sink"
                    raise wrong_argument(f"the option {option}", given.get(option), hint)
            sink = self._checked(replace(present, options=given))
            if sink.options != present.options:
                workspace.save(workspace.catalog.set_sink(sink))
                self._start(sink)  # after the delivery that is under way

    def pause(self, name: str, *, wait: bool = True) -> None:
        """Stop delivering to a sink, also after the storage was reopened.

        Args:
            wait: as for `drop`.
        """
        workspace = self._workspace
        with workspace.lock:
            workspace.check_writable()
            sink = workspace.catalog.get_sink(name)
            workspace.save(workspace.catalog.set_sink(replace(sink, paused=1)))
            self._stop(sink.id)
            ended = self._ended.get(sink.id)
        if wait and ended is not None:
            ended.finish(STOP_S)

    def resume(self, name: str) -> None:
        """Deliver to a paused sink again, from where it was."""
        workspace = self._workspace
        with workspace.lock:
            workspace.check_writable()
            sink = replace(workspace.catalog.get_sink(name), paused=0)
            workspace.save(workspace.catalog.set_sink(sink))
            self._start(sink)

    def resend(self, name: str) -> None:
        """Replace all rows of the target by those of the view; do nothing before the first delivery."""
        workspace = self._workspace
        with workspace.lock:
            workspace.check_writable()
            sink = workspace.catalog.get_sink(name)
            self._abandon(sink.id)  # it would write the cursor
            Outbox(workspace.files, sink.id).send_anew()
            workspace.save(workspace.catalog)  # the request that is being answered is done
            self._start(sink)

    def check_replaced(self, draft: Entry, compiled: CompiledPlan) -> None:
        """Raise CatalogError if a sink of a view couldn't follow the one that replaces it."""
        workspace = self._workspace
        for sink in workspace.catalog.sinks:
            if sink.upstream[0].lower() == draft.name.lower() and sink.format != FUNCTION:
                target = self._target(sink, draft, compiled)
                _format(sink.format).check(target, _own_options(sink))

    def wake(self) -> None:
        """Deliver what is committed by now, in the background. The caller holds the workspace's lock."""
        catalog = self._workspace.catalog
        for sink in catalog.sinks:
            deliverer = self._deliverers.get(sink.id)
            if deliverer is None:
                self._start(sink)
                continue
            view, followed = catalog.get(sink.upstream[0], VIEW), self._followed[sink.id]
            plan = self._workspace.known_plan(view)  # that of a reader changes with what it reads
            changed = view.id != followed[0] or (plan is not None and plan.key != followed[1])
            if changed:  # a view that fails at once has no rows, which the target must not get
                self._start(sink)
            else:
                deliverer.wake()

    def wait(self, epoch: int) -> None:
        """Wait, at most `WAIT_S` seconds, until all sinks that don't fail have delivered an epoch."""
        end = time.monotonic() + WAIT_S
        for deliverer in list(self._deliverers.values()):
            deliverer.wait(Epoch(epoch), max(end - time.monotonic(), 0))

    def stop(self) -> None:
        """Stop all deliveries; those under way finish, in `STOP_S` seconds at most."""
        for sink in list(self._deliverers):
            self._stop(sink)
        end = time.monotonic() + STOP_S
        for ended in list(self._ended.values()):
            ended.finish(max(end - time.monotonic(), 0))

    def status(self) -> list[dict[str, Any]]:
        """Return the status of each sink; see `Engine.status`."""
        workspace = self._workspace
        catalog, manifest = workspace.current()
        found = sinks_status(workspace.files, catalog, manifest.epoch)
        for sink, status in zip(catalog.sinks, found, strict=True):
            deliverer = self._deliverers.get(sink.id)
            if deliverer is not None:
                status["rows"] = deliverer.rows
                if (error := deliverer.error) is not None:
                    status |= {"state": "failing", "error": self._shown(sink, error)}
            elif workspace.writes and not sink.paused:
                waiting = sink.format != FUNCTION or sink.id in self._functions
                status["state"] = "waiting" if waiting else "not connected"
        return found

    def status_of(self, name: str) -> dict[str, Any]:
        """Return the status of one sink; CatalogError if there is none."""
        wanted = self._workspace.catalog.get_sink(name).name
        return next(status for status in self.status() if status["sink"] == wanted)

    def show(self) -> DataFrame:
        """List the sinks, for SHOW SINKS."""
        names = ("sink", "view", "format", "state", "epoch", "behind", "error")
        rows = [tuple(status.get(name) for name in names) for status in self.status()]
        kinds = "name string, view string, format string, state string, epoch bigint, behind bigint, error string"
        return self._workspace.spark.createDataFrame(rows, kinds)

    # -- internals ---------------------------------------------------------------------------

    def _define(
        self,
        name: str,
        view: str,
        format: str,
        options: dict[str, str],
        function: Function | None = None,
    ) -> Entry:
        workspace = self._workspace
        check_name(name, SINK)
        with workspace.lock:
            workspace.check_writable()
            followed = workspace.catalog.get(view, VIEW)
            present = workspace.catalog.find_sink(name)
            options = with_absolute_path(format, options, present)
            sink = self._checked(
                Entry("", SINK, name, "", upstream=(followed.name,), format=format, options=options)
            )
            if present is not None:
                if not drafts.same(replace(sink, paused=present.paused), present):
                    raise drafts.name_taken(present, given=sink)
                if function is not None:
                    self._functions[present.id] = function
                    self._start(present)
                return present
            if not workspace.files.exists(f"{FOLDER}/{IDENTITY}"):
                workspace.files.make_folder(FOLDER)
                workspace.files.write_json(f"{FOLDER}/{IDENTITY}", {"storage": uuid.uuid4().hex})
            catalog = workspace.catalog.add_sink(sink)
            sink = catalog.sinks[-1]
            letters = drafts.stream_letters(sink, REJECTS)
            if (taken := catalog.find(letters.name)) is not None:
                raise drafts.name_taken(taken)
            workspace.save(catalog.add(letters))
            if function is not None:
                self._functions[sink.id] = function
            self._connect_letters(sink)
            self._start(sink)
            return sink

    def _checked(self, sink: Entry) -> Entry:
        """Return the entry of a new sink, with the options as they are stored."""
        workspace = self._workspace
        view = workspace.catalog.get(sink.upstream[0], VIEW)
        options = sink.options
        if COMMIT_INTERVAL in options:
            text = options[COMMIT_INTERVAL]
            given = f"{text} seconds" if text.replace(".", "", 1).isdigit() else text
            micros = interval_micros(given, workspace.spark)
            if micros is None or micros < 0:
                raise wrong_argument(
                    f"the option {COMMIT_INTERVAL}", text, "write it like 10 seconds"
                )
            options = {**options, COMMIT_INTERVAL: str(micros)}
        sink = replace(sink, options=options)
        target = self._target(sink, view, workspace.plan(view))
        if sink.format == FUNCTION:
            check_feed_columns(target)
        else:
            form, own = _format(sink.format), _own_options(sink)
            for unknown in [key for key in own if key not in form.options]:
                known = ", ".join([*form.options, COMMIT_INTERVAL])
                raise wrong_argument(f"an option of {sink.format}", unknown, f"known: {known}")
            check_secrets(own, form.secrets)
            form.check(target, own)
        return sink

    def _target(self, sink: Entry, view: Entry, compiled: CompiledPlan) -> Target:
        workspace = self._workspace
        columns = compiled.compiled.schema
        key = compiled.key
        named = zip(arrow_schema(plain_schema(columns), workspace.zone), columns.names, strict=True)
        storage = ""
        if workspace.files.exists(f"{FOLDER}/{IDENTITY}"):
            storage = workspace.files.read_json(f"{FOLDER}/{IDENTITY}")["storage"]
        stop = sink.options.get(ON_REFUSED) == STOP
        return Target(
            f"eddyline/{storage}/{sink.id}",
            sink.name,
            columns,
            pa.schema([kind.with_name(name) for kind, name in named]),
            None if key is None else tuple(columns.names[place] for place in key),
            compiled.compiled.append_only,
            refuse=keep_none if stop or not sink.id else self._letters_of(sink),
            others=lambda: {
                f"eddyline/{storage}/{other.id}": other.name
                for other in workspace.catalog.sinks
                if other.id != sink.id
            },
        )

    def _open(self, sink: Entry, view: Entry, target: Target) -> Delivery:
        """Open the delivery of a view to a sink; called in its thread."""
        files = self._workspace.files
        outbox = Outbox(files, sink.id)
        cursor = outbox.cursor()
        if cursor is not None and cursor.view != NO_VIEW:
            target = replace(target, delivered=cursor.epoch)
        target = replace(target, notes=NotesFile(files, sink.id))
        if sink.format == FUNCTION:
            opened: Any = FunctionSink(target, self._calling(self._functions[sink.id]))
        else:
            own = _own_options(sink)
            self._secrets[sink.id] = secret_values(own)
            opened = _format(sink.format).open(target, filled_in(own))
        each = sink.format == FUNCTION
        return Delivery(CommittedChangelog(files, view), outbox, opened, each=each)

    def _note(self, sink: Entry, error: Exception | None) -> None:
        """Store why a sink can't deliver, for other processes; None: it can. Called in its thread."""
        workspace, outage = self._workspace, OutageFile(self._workspace.files, sink.id)
        if error is None:
            outage.clear()
        elif any(known.id == sink.id for known in workspace.catalog.sinks):  # else it was dropped
            text = self._shown(sink, error)
            outage.write(Outage(workspace.clock(), condition_of(error), text))

    def _shown(self, sink: Entry, error: Exception) -> str:
        """Return the message of an error, without the values of secrets."""
        return without_secrets(
            message_text(error) or type(error).__name__, self._secrets.get(sink.id, ())
        )

    def _calling(self, function: Function) -> Callable[[pa.Table, Epoch], None]:
        """Return a wrapper that calls a user's function with a DataFrame."""

        def call(feed: pa.Table, epoch: Epoch) -> None:
            rows = with_commit(feed, epoch, committed_at(self._workspace.files, epoch))
            function(self._workspace.session().createDataFrame(rows), epoch)

        return call

    def _follow(self, sink: Entry) -> tuple[Entry, Target]:
        """Return the view that a sink follows now, with the properties that the sink needs."""
        workspace = self._workspace
        view = workspace.catalog.get(sink.upstream[0], VIEW)
        return view, self._target(sink, view, workspace.plan(view))

    def _start(self, sink: Entry) -> None:
        if sink.paused or (sink.format == FUNCTION and sink.id not in self._functions):
            return
        self._stop(sink.id)
        if self._workspace.catalog.get(sink.upstream[0]).id in self._workspace.manifest.failing:
            return  # it may not be compilable now; the commit that brings it back starts the sink
        try:
            followed = self._follow(sink)
        except EddylineError as error:  # the view can't be compiled now; each epoch tries again
            _LOG.warning("sink %s waits for its view: %s", sink.name, error.condition)
            return
        plan = self._workspace.plan(followed[0])
        self._followed[sink.id] = followed[0].id, plan.key
        interval_s = int(sink.options.get(COMMIT_INTERVAL, 0)) / 1e6
        self._deliverers[sink.id] = Deliverer(
            sink.name,
            lambda: self._open(sink, *followed),
            interval_s,
            self._report,
            self._delivered,
            lambda error: self._note(sink, error),
            self._ended.pop(sink.id, None),
        )

    def _stop(self, sink: str) -> None:
        """Tell the thread of a sink to stop, without waiting for it; the next one of the sink does that."""
        deliverer = self._deliverers.pop(sink, None)
        if deliverer is not None:
            deliverer.stop()
            self._ended[sink] = deliverer
            self._followed.pop(sink, None)

    def _abandon(self, sink: str) -> None:
        """Stop the thread of a sink, which doesn't write the cursor any more, not even after a delivery under way."""
        self._stop(sink)
        if sink in self._ended:
            self._ended[sink].abandon()

    def _connect_letters(self, sink: Entry) -> None:
        letters = self._workspace.catalog.letters_of(sink)
        if letters is not None:
            log = self._workspace.sources.log(letters)
            self._workspace.sources.register_letters(letters, Rejects(sink.name, log))

    def _letters_of(self, sink: Entry) -> Callable[[pa.Table, Sequence[str]], None]:
        """Return the store for rows that a target refuses, which become dead letters of the sink."""

        def keep(rows: pa.Table, errors: Sequence[str]) -> None:
            workspace = self._workspace
            letters = workspace.catalog.letters_of(sink)
            if letters is None:
                raise CatalogError(
                    f"sink {sink.name} was dropped", condition="NOT_FOUND", hint="create it again"
                )
            payloads = [text.encode() for text in json_rows(rows)]
            # the same row, refused again after a crash, replaces its letter
            places = [
                int.from_bytes(hashlib.blake2b(one, digest_size=8).digest()) >> 1
                for one in payloads
            ]
            handler = workspace.sources.dead_letters(letters)
            assert isinstance(handler, Rejects)
            handler.add(
                pa.array(np.array(places)), pa.array(payloads), pa.array(list(errors)), SINK
            )
            _LOG.warning("sink %s: its target refuses rows: %d", sink.name, len(payloads))

        return keep


def given_options(options: Mapping[str, object]) -> dict[str, str]:
    """Return options of a sink with names in lower case and values as text."""
    return {
        key.lower(): str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in options.items()
    }


def _format(name: str) -> SinkFormat:
    """Return a registered format of sinks; EngineError BAD_OPTION if there is none."""
    found = SINKS.get(name)
    if found is None:
        raise wrong_argument("the format of a sink", name, f"choose of {', '.join(SINKS)}")
    return found


def _own_options(sink: Entry) -> dict[str, str]:
    """Return the options that the format of a sink reads."""
    return {name: value for name, value in sink.options.items() if name != COMMIT_INTERVAL}
