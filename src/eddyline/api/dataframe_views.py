"""Views that DataFrames define, and the relations from which users build such DataFrames."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

from eddyline.api.workspace import Workspace
from eddyline.arguments import wrong_argument
from eddyline.catalog.entries import Entry
from eddyline.plan.logical import Plan
from eddyline.spark.failures import query_errors
from eddyline.spark.session import storage_zone
from eddyline.spark.settings import storage_settings
from eddyline.sql.names import quoted

FrameFunction = Callable[[], DataFrame]
Query = str | DataFrame | FrameFunction


def relation(workspace: Workspace, name: str) -> DataFrame:
    """Return the DataFrame that stands for a relation; see `Engine.relation`."""
    with workspace.lock:
        return workspace.compiler.frames.relation(workspace.current().catalog.get(name))


def frame_of(workspace: Workspace, view: str, given: DataFrame | FrameFunction) -> DataFrame:
    """Return the DataFrame of a new view; a function is called, with all relations as temporary views.

    Raises:
        QueryError: Spark can't resolve it.
        EngineError: it isn't a DataFrame of a classic session with the settings of the storage.
    """
    frame = given
    if not isinstance(given, DataFrame):
        with query_errors("", view=view), _temporary_views(workspace):
            frame = given()
    if not isinstance(frame, ClassicFrame):
        hint = (
            "give a DataFrame of a classic session (engine.spark), or a function that returns one"
        )
        raise wrong_argument(f"the DataFrame of view {view}", frame, hint)
    storage_zone(frame.sparkSession, workspace.zone)
    storage_settings(frame.sparkSession, workspace.settings)
    return frame


@contextmanager
def _temporary_views(workspace: Workspace) -> Iterator[None]:
    """Register the relations as temporary views of the user's session during the context; its own views win."""
    spark, made = workspace.spark, []
    try:
        for entry in workspace.catalog.entries:
            frame = relation(workspace, entry.name)
            with suppress(PySparkException):  # the user has a temporary view of this name
                frame.createTempView(quoted(entry.name))
                made.append(entry.name)
        yield
    finally:
        for name in made:
            spark.catalog.dropTempView(name)


def connect_frame(workspace: Workspace, present: Entry, draft: Entry, plan: Plan) -> bool:
    """Connect a stored view with its DataFrame if the plan is the one that it was defined by; return whether it is.

    The text of a plan depends on the versions of Spark and Python. After a change of these, the view
    takes the text of a DataFrame that has the same columns and reads the same relations.
    """
    if draft.query != present.query:
        same = _columns(draft) == _columns(present) and set(draft.upstream) == set(present.upstream)
        if draft.options == present.options or not same:
            return False
        renewed = replace(present, query=draft.query, options=draft.options)
        catalog = workspace.catalog
        entries = tuple(renewed if one is present else one for one in catalog.entries)
        workspace.save(replace(catalog, entries=entries))
    frames = workspace.compiler.frames
    if not frames.knows(present):
        frames.keep(present.id, plan)
        workspace.forget_plan(present)
    return True


def _columns(entry: Entry) -> list[tuple[str, str]]:
    """Return names and types without nullability, which Spark's optimiser can change."""
    return [(column.name, column.dataType.simpleString()) for column in entry.columns]
