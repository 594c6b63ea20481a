"""Relations as DataFrames without rows, and the plans of views that users build from them."""

from __future__ import annotations

import platform
from collections import deque
from collections.abc import Mapping

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from eddyline.catalog.catalog import Catalog
from eddyline.catalog.entries import FRAME, VIEW, Entry
from eddyline.catalog.expectations import filter_of
from eddyline.errors import QueryError
from eddyline.plan.catalyst import Catalyst
from eddyline.plan.frames import leaves, misplaced_subquery, over_contents, plan_text
from eddyline.plan.logical import Plan, output_of
from eddyline.plan.refusals import FOREIGN, MISPLACED_SUBQUERY, STREAMING_FRAME
from eddyline.plan.render import node_text
from eddyline.spark.session import frame as spark_frame

UNDEFINED = "VIEW_UNDEFINED"
GONE_MAX = 1000
"""DataFrames of dropped relations that an error still tells from those of no relation."""


class Frames:
    """The DataFrames that this process has given out or received; they don't outlive it.

    Args:
        spark: the user's session, in which the DataFrames of relations are made.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._catalyst = Catalyst(spark)
        self._relations: dict[str, tuple[StructType, DataFrame]] = {}
        self._made: dict[int, tuple[str, StructType]] = {}  # by the id of an RDD: id, columns
        self._gone: deque[int] = deque(maxlen=GONE_MAX)  # of dropped relations
        self._plans: dict[str, Plan] = {}

    def relation(self, entry: Entry) -> DataFrame:
        """Return the DataFrame that stands for a relation in plans."""
        columns = entry.columns
        known = self._relations.get(entry.id)
        if known is not None and known[0] == columns:
            return known[1]
        session = self._catalyst.session
        rows = session.sparkContext.parallelize([entry.name], 1).map(_no_rows)
        made = spark_frame(session, rows, columns)
        self._made[self._catalyst.rdd_id(self._catalyst.plan(made))] = entry.id, columns
        accepted = filter_of(entry)
        named = (made.where(accepted) if accepted else made).alias(entry.name)
        self._relations[entry.id] = columns, named
        return named

    def read(self, view: str, plan: Plan, catalog: Catalog) -> dict[int, Entry]:
        """Return the relations that a plan reads, by the id of the RDD that stands for each.

        Raises:
            QueryError: it reads other data, or a relation that was dropped or altered since.
        """
        entries = {entry.id: entry for entry in catalog.entries}
        found = {}
        for rdd, leaf in leaves(self._catalyst, plan).items():
            made, columns = self._made.get(rdd, ("", None))
            entry = entries.get(made)
            if entry is None or entry.columns != columns:
                names = ", ".join(attribute.name() for attribute in output_of(leaf))
                known = bool(made) or rdd in self._gone
                raise FOREIGN.about(what=_described(names, known)).error(view)
            found[rdd] = entry
        return found

    def draft(self, name: str, frame: DataFrame, catalog: Catalog) -> tuple[Plan, Entry]:
        """Return the plan of a DataFrame, and the entry of the view that it defines.

        Raises:
            QueryError: it reads something else than relations of this engine.
        """
        if frame.isStreaming:
            raise STREAMING_FRAME.error(name)
        plan = self._catalyst.plan(frame)
        if (misplaced := misplaced_subquery(plan)) is not None:
            raise MISPLACED_SUBQUERY.error(name, node_text(misplaced))
        read = self.read(name, plan, catalog)
        names = {rdd: entry.name for rdd, entry in read.items()}
        wanted = {entry.id for entry in read.values()}
        entry = Entry(
            "", VIEW, name, frame.schema.json(),
            query=plan_text(self._catalyst, plan, names),
            upstream=tuple(entry.name for entry in catalog.entries if entry.id in wanted),
            format=FRAME,
            options=versions(),
        )  # fmt: skip
        return plan, entry

    def keep(self, view: str, plan: Plan) -> None:
        """Remember the plan of a view, by its id."""
        self._plans[view] = plan

    def knows(self, entry: Entry) -> bool:
        """Return whether the user has given this process the DataFrame of a view."""
        return entry.id in self._plans

    def forget(self, view: str) -> None:
        """Forget the DataFrame of an entry that is defined anew, by its id; those that were given out stay known."""
        self._plans.pop(view, None)
        self._relations.pop(view, None)

    def drop(self, entry: str) -> None:
        """Forget all that is known of a dropped entry, by its id."""
        self.forget(entry)
        for rdd in [rdd for rdd, (made, _) in self._made.items() if made == entry]:
            del self._made[rdd]
            self._gone.append(rdd)

    def plan(self, entry: Entry) -> Plan:
        """Return the plan of a view.

        Raises:
            QueryError: VIEW_UNDEFINED: this process has not been given its DataFrame.
        """
        found = self._plans.get(entry.id)
        if found is None:
            raise QueryError(
                "it is defined by a DataFrame, and waits until this process has defined it again",
                condition=UNDEFINED,
                hint=f"call engine.view({entry.name!r}, ...) as before; then it catches up",
                view=entry.name,
            )
        return found

    def offline(
        self,
        entry: Entry,
        catalog: Catalog,
        contents: Mapping[str, DataFrame],
        session: SparkSession,
    ) -> DataFrame:
        """Return the DataFrame of a view over actual rows, for Spark to run offline.

        Args:
            contents: the rows of each relation, by name.
        """
        plan = self.plan(entry)
        read = self.read(entry.name, plan, catalog)
        if missing := [known.name for known in read.values() if known.name not in contents]:
            raise FOREIGN.about(what=f"{missing[0]}, whose rows aren't known").error(entry.name)
        rows = {rdd: contents[known.name] for rdd, known in read.items()}
        catalyst = Catalyst(session)
        return catalyst.frame(over_contents(catalyst, plan, rows))


def versions() -> dict[str, str]:
    """Return the versions that the text of a plan depends on."""
    return {"spark": pyspark.__version__, "python": platform.python_version()}


def _no_rows(name: str) -> tuple[object, ...]:
    """Raise SCHEMA_ONLY: a user has called an action on a relation."""
    raise QueryError(
        f"the DataFrame of relation {name} has columns, but no rows: it is for definitions of views",
        condition="SCHEMA_ONLY",
        hint=f"read the rows with engine.sql or engine.snapshot({name!r})",
    )


def _described(columns: str, known: bool) -> str:
    if known:
        return f"a relation ({columns}) that was dropped since, or has other columns now"
    return f"a DataFrame ({columns}) that is no relation of this engine"
