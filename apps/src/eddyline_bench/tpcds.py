"""TPC-DS: its 99 queries over small tables, and epochs of changes: for a benchmark and for the tests."""

from __future__ import annotations

import importlib.util
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from eddyline.errors import EddylineError
from eddyline.spark.session import cloned
from eddyline_bench.measure import bench_session, require
from eddyline_bench.small import SmallResult, Work, new_engine, timed
from eddyline_bench.tpch import Refresh, refreshed

KEYS: dict[str, tuple[str, ...]] = {
    "call_center": ("cc_call_center_sk",),
    "catalog_page": ("cp_catalog_page_sk",),
    "catalog_returns": ("cr_item_sk", "cr_order_number"),
    "catalog_sales": ("cs_item_sk", "cs_order_number"),
    "customer": ("c_customer_sk",),
    "customer_address": ("ca_address_sk",),
    "customer_demographics": ("cd_demo_sk",),
    "date_dim": ("d_date_sk",),
    "household_demographics": ("hd_demo_sk",),
    "income_band": ("ib_income_band_sk",),
    "inventory": ("inv_date_sk", "inv_item_sk", "inv_warehouse_sk"),
    "item": ("i_item_sk",),
    "promotion": ("p_promo_sk",),
    "reason": ("r_reason_sk",),
    "ship_mode": ("sm_ship_mode_sk",),
    "store": ("s_store_sk",),
    "store_returns": ("sr_item_sk", "sr_ticket_number"),
    "store_sales": ("ss_item_sk", "ss_ticket_number"),
    "time_dim": ("t_time_sk",),
    "warehouse": ("w_warehouse_sk",),
    "web_page": ("wp_web_page_sk",),
    "web_returns": ("wr_item_sk", "wr_order_number"),
    "web_sales": ("ws_item_sk", "ws_order_number"),
    "web_site": ("web_site_sk",),
}

# the tables of what happened, with the column whose rows belong together
FACTS = {
    "store_sales": "ss_ticket_number",
    "store_returns": "sr_ticket_number",
    "catalog_sales": "cs_order_number",
    "catalog_returns": "cr_order_number",
    "web_sales": "ws_order_number",
    "web_returns": "wr_order_number",
    "inventory": "inv_item_sk",
}

# large tables of which only the rows are kept that others refer to, by the end of a column's name
REFERRED = {
    "date_dim": "date_sk",
    "time_dim": "time_sk",
    "customer_demographics": "cdemo_sk",
    "household_demographics": "hdemo_sk",
    "catalog_page": "catalog_page_sk",
}

# queries whose epochs or views take longest, or nearly so
TOGETHER = ("q4", "q9", "q14", "q36", "q47", "q64", "q66", "q67")

SCALE = 0.01
_QUOTED = re.compile(r'"([^"]+)"')  # a name in DuckDB, a text in Spark


def generate() -> tuple[dict[str, str], dict[str, pa.Table]]:
    """Return the queries and the tables, as DuckDB's extension generates them."""
    import duckdb

    found = importlib.util.find_spec("duckdb_extension_tpcds")
    folders = [] if found is None else list(found.submodule_search_locations or ())
    (extension,) = (path for one in folders for path in Path(one).rglob("tpcds.duckdb_extension"))
    # the package's file isn't where DuckDB looks for signed ones
    base: Any = duckdb.connect(config={"allow_unsigned_extensions": True})
    base.execute(f"LOAD '{extension}'")
    base.execute(f"CALL dsdgen(sf={SCALE})")
    listed = base.execute("SELECT query_nr, query FROM tpcds_queries() ORDER BY 1").fetchall()
    queries = {f"q{number}": _QUOTED.sub(r"`\1`", query) for number, query in listed}
    tables = {name: base.execute(f"FROM {name}").to_arrow_table() for name in KEYS}
    return queries, tables


class Data:
    """The tables as they are expected after each epoch, and what comes in the next ones.

    Args:
        share: of the sales and what belongs to them, at the start; as many come later.
    """

    def __init__(self, tables: Mapping[str, pa.Table], share: float) -> None:
        self.tables = dict(tables)
        self._later: dict[str, pa.Table] = {}
        for name, column in FACTS.items():
            # whole tickets and orders, and the returns of the same ones
            place = pc.bit_wise_and(pc.multiply(tables[name][column], 0x9E3779B1), 0xFFFF)
            first = pc.less(place, int(share * 0xFFFF))
            then = pc.and_not(pc.less(place, int(2 * share * 0xFFFF)), first)
            self.tables[name], self._later[name] = (
                tables[name].filter(kept).combine_chunks() for kept in (first, then)
            )
        for name, end in REFERRED.items():
            (key,) = KEYS[name]
            used = pc.is_in(tables[name][key], pa.array(self._referred(end)))
            self.tables[name] = tables[name].filter(used).combine_chunks()

    def _referred(self, end: str) -> list[int]:
        others = [table for name, table in self.tables.items() if name not in REFERRED]
        found = [
            table[column].drop_null().to_numpy()
            for table in [*others, *self._later.values()]
            for column in table.column_names
            if column.endswith(end)
        ]
        return [int(key) for key in np.unique(np.concatenate(found))]

    def changes(self, number: int, of: int = 20) -> Iterator[Refresh]:
        """Yield the changes of an epoch: deleted, new and changed facts, and a few changed items and customers.

        Args:
            of: in how many epochs all that comes later has come, and all that was there is deleted.
        """
        random = np.random.default_rng(number)
        for name in FACTS:
            rows, later = self.tables[name], self._later[name]
            some = random.permutation(rows.num_rows)[: max(rows.num_rows // of, 2)]
            yield Refresh(name, "delete", rows.take(some[::2]))
            yield Refresh(name, "upsert", _mixed(rows.take(some[1::2]), random))
            length = later.num_rows // of
            yield Refresh(name, "upsert", later.slice(number % of * length, length))
        for name in ("item", "customer", "customer_address"):
            rows = self.tables[name]
            yield Refresh(
                name, "upsert", _mixed(rows.take(random.permutation(len(rows))[:8]), random)
            )

    def apply(self, change: Refresh) -> None:
        """Apply a change to the expected tables."""
        table = self.tables[change.table]
        self.tables[change.table] = refreshed(table, change, KEYS[change.table])


def _mixed(rows: pa.Table, random: np.random.Generator) -> pa.Table:
    """Return rows with the values of their decimal columns given to other rows."""
    for place, field in enumerate(rows.schema):
        if pa.types.is_decimal(field.type):
            other = rows.column(place).take(pa.array(random.permutation(rows.num_rows)))
            rows = rows.set_column(place, field, other)
    return rows


def run(
    *,
    repeat: int = 5,
    cores: int = 2,
    share: float = 0.03,
    queries: Sequence[str] = (),
) -> SmallResult:
    """Time each query alone, then some together: making the views, and small epochs.

    Args:
        repeat: number of timed epochs of each query.
        cores: number of cores of the local session.
        share: of the sales that are there at the start.
        queries: their names; all if there are none.
    """
    require("duckdb", "the tables of TPC-DS need")
    texts, tables = generate()
    chosen = queries or list(texts)
    data, work = Data(tables, share), []
    with bench_session(cores) as spark, new_engine(spark) as engine:
        handles = {
            name: engine.table(name, from_arrow_schema(rows.schema), KEYS[name])
            for name, rows in data.tables.items()
        }
        for name, rows in data.tables.items():
            handles[name].insert(rows)
        engine.advance()
        count, changed = 0, 0

        def change(_: int) -> None:
            nonlocal count, changed
            refreshes = list(data.changes(count, of=5))  # some 800 rows
            count, changed = count + 1, sum(len(one.rows) for one in refreshes)
            for one in refreshes:
                if one.rows.num_rows:
                    data.apply(one)
                    getattr(handles[one.table], one.operation)(one.rows)

        for name in chosen:
            one = Work(name)
            try:
                timed(engine, one, {name: texts[name]}, change, repeat)
                one.batch += _offline(spark, data, texts[name])
            except EddylineError as error:  # a division by zero, for example
                if error.condition != "VIEW_FAILING" or not _fails(spark, data, texts[name]):
                    raise
                one.name += " (fails on these rows, offline too)"
            engine.drop("view", name)
            work.append(one)
        some = {name: texts[name] for name in TOGETHER if name in chosen}
        if some:
            work.append(Work(f"{len(some)} together"))
            timed(engine, work[-1], some, change, repeat)
    rows = sum(table.num_rows for table in data.tables.values())
    title = (
        f"TPC-DS, {rows:,} rows in {len(KEYS)} tables, about {changed:,} changes an epoch; medians"
    )
    return SmallResult(title, "TPC-DS", work)


def _fails(spark: SparkSession, data: Data, query: str) -> bool:
    """Return whether a query fails in batch Spark."""
    try:
        list(_offline(spark, data, query))
    except PySparkException:
        return True
    return False


def _offline(spark: SparkSession, data: Data, query: str) -> Iterator[float]:
    """Yield the seconds of a query in batch Spark, from the second run on."""
    offline = cloned(spark)
    for name, rows in data.tables.items():
        offline.createDataFrame(rows).createOrReplaceTempView(name)
    for number in range(4):
        started = time.perf_counter()
        offline.sql(query).toArrow()
        if number:
            yield time.perf_counter() - started
