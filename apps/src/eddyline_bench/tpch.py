"""TPC-H: the 22 queries, the tables, and refreshes: for a benchmark and for the tests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

KEYS = {
    "region": ("r_regionkey",),
    "nation": ("n_nationkey",),
    "supplier": ("s_suppkey",),
    "part": ("p_partkey",),
    "partsupp": ("ps_partkey", "ps_suppkey"),
    "customer": ("c_custkey",),
    "orders": ("o_orderkey",),
    "lineitem": ("l_orderkey", "l_linenumber"),
}

# constants are adapted to the small scale, so that no result is empty
QUERIES = {
    "q1": """
        SELECT l_returnflag, l_linestatus, sum(l_quantity) AS sum_qty,
            sum(l_extendedprice) AS sum_base_price,
            sum(l_extendedprice * (1 - l_discount)) AS sum_disc_price,
            sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)) AS sum_charge,
            avg(l_quantity) AS avg_qty, avg(l_extendedprice) AS avg_price,
            avg(l_discount) AS avg_disc, count(*) AS count_order
        FROM lineitem
        WHERE l_shipdate <= DATE '1998-12-01' - INTERVAL 90 DAYS
        GROUP BY l_returnflag, l_linestatus
        ORDER BY l_returnflag, l_linestatus
    """,
    "q2": """
        SELECT s_acctbal, s_name, n_name, p_partkey, p_mfgr, s_address, s_phone, s_comment
        FROM part, supplier, partsupp, nation, region
        WHERE p_partkey = ps_partkey AND s_suppkey = ps_suppkey AND p_size < 15
            AND p_type LIKE '%BRASS' AND s_nationkey = n_nationkey
            AND n_regionkey = r_regionkey AND r_name = 'EUROPE'
            AND ps_supplycost = (
                SELECT min(ps_supplycost) FROM partsupp, supplier, nation, region
                WHERE p_partkey = ps_partkey AND s_suppkey = ps_suppkey
                    AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey
                    AND r_name = 'EUROPE')
        ORDER BY s_acctbal DESC, n_name, s_name, p_partkey
        LIMIT 100
    """,
    "q3": """
        SELECT l_orderkey, sum(l_extendedprice * (1 - l_discount)) AS revenue, o_orderdate,
            o_shippriority
        FROM customer, orders, lineitem
        WHERE c_mktsegment = 'BUILDING' AND c_custkey = o_custkey AND l_orderkey = o_orderkey
            AND o_orderdate < DATE '1995-03-15' AND l_shipdate > DATE '1995-03-15'
        GROUP BY l_orderkey, o_orderdate, o_shippriority
        ORDER BY revenue DESC, o_orderdate
        LIMIT 10
    """,
    "q4": """
        SELECT o_orderpriority, count(*) AS order_count
        FROM orders
        WHERE o_orderdate >= DATE '1993-07-01'
            AND o_orderdate < DATE '1993-07-01' + INTERVAL 3 MONTHS
            AND EXISTS (SELECT * FROM lineitem
                WHERE l_orderkey = o_orderkey AND l_commitdate < l_receiptdate)
        GROUP BY o_orderpriority
        ORDER BY o_orderpriority
    """,
    "q5": """
        SELECT n_name, sum(l_extendedprice * (1 - l_discount)) AS revenue
        FROM customer, orders, lineitem, supplier, nation, region
        WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey AND l_suppkey = s_suppkey
            AND c_nationkey = s_nationkey AND s_nationkey = n_nationkey
            AND n_regionkey = r_regionkey AND r_name = 'ASIA'
            AND o_orderdate >= DATE '1993-01-01' AND o_orderdate < DATE '1996-01-01'
        GROUP BY n_name
        ORDER BY revenue DESC
    """,
    "q6": """
        SELECT sum(l_extendedprice * l_discount) AS revenue
        FROM lineitem
        WHERE l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1995-01-01'
            AND l_discount BETWEEN 0.06 - 0.01 AND 0.06 + 0.01 AND l_quantity < 24
    """,
    "q7": """
        SELECT supp_nation, cust_nation, l_year, sum(volume) AS revenue
        FROM (
            SELECT n1.n_name AS supp_nation, n2.n_name AS cust_nation,
                year(l_shipdate) AS l_year, l_extendedprice * (1 - l_discount) AS volume
            FROM supplier, lineitem, orders, customer, nation n1, nation n2
            WHERE s_suppkey = l_suppkey AND o_orderkey = l_orderkey AND c_custkey = o_custkey
                AND s_nationkey = n1.n_nationkey AND c_nationkey = n2.n_nationkey
                AND ((n1.n_name IN ('FRANCE', 'KENYA', 'PERU') AND n2.n_name IN ('GERMANY', 'CHINA'))
                    OR (n1.n_name IN ('GERMANY', 'CHINA') AND n2.n_name IN ('FRANCE', 'PERU')))
                AND l_shipdate BETWEEN DATE '1995-01-01' AND DATE '1996-12-31')
        GROUP BY supp_nation, cust_nation, l_year
        ORDER BY supp_nation, cust_nation, l_year
    """,
    "q8": """
        SELECT o_year, sum(CASE WHEN nation = 'PERU' THEN volume ELSE 0 END) / sum(volume) AS mkt_share
        FROM (
            SELECT year(o_orderdate) AS o_year, l_extendedprice * (1 - l_discount) AS volume,
                n2.n_name AS nation
            FROM part, supplier, lineitem, orders, customer, nation n1, nation n2, region
            WHERE p_partkey = l_partkey AND s_suppkey = l_suppkey AND l_orderkey = o_orderkey
                AND o_custkey = c_custkey AND c_nationkey = n1.n_nationkey
                AND n1.n_regionkey = r_regionkey AND r_name = 'AMERICA'
                AND s_nationkey = n2.n_nationkey
                AND o_orderdate BETWEEN DATE '1995-01-01' AND DATE '1996-12-31'
                AND p_type LIKE 'ECONOMY%')
        GROUP BY o_year
        ORDER BY o_year
    """,
    "q9": """
        SELECT nation, o_year, sum(amount) AS sum_profit
        FROM (
            SELECT n_name AS nation, year(o_orderdate) AS o_year,
                l_extendedprice * (1 - l_discount) - ps_supplycost * l_quantity AS amount
            FROM part, supplier, lineitem, partsupp, orders, nation
            WHERE s_suppkey = l_suppkey AND ps_suppkey = l_suppkey AND ps_partkey = l_partkey
                AND p_partkey = l_partkey AND o_orderkey = l_orderkey
                AND s_nationkey = n_nationkey AND p_name LIKE '%green%')
        GROUP BY nation, o_year
        ORDER BY nation, o_year DESC
    """,
    "q10": """
        SELECT c_custkey, c_name, sum(l_extendedprice * (1 - l_discount)) AS revenue, c_acctbal,
            n_name, c_address, c_phone, c_comment
        FROM customer, orders, lineitem, nation
        WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey
            AND o_orderdate >= DATE '1993-10-01'
            AND o_orderdate < DATE '1993-10-01' + INTERVAL 3 MONTHS
            AND l_returnflag = 'R' AND c_nationkey = n_nationkey
        GROUP BY c_custkey, c_name, c_acctbal, c_phone, n_name, c_address, c_comment
        ORDER BY revenue DESC
        LIMIT 20
    """,
    "q11": """
        SELECT ps_partkey, sum(ps_supplycost * ps_availqty) AS value
        FROM partsupp, supplier, nation
        WHERE ps_suppkey = s_suppkey AND s_nationkey = n_nationkey AND n_regionkey = 1
        GROUP BY ps_partkey
        HAVING sum(ps_supplycost * ps_availqty) > (
            SELECT sum(ps_supplycost * ps_availqty) * 0.008
            FROM partsupp, supplier, nation
            WHERE ps_suppkey = s_suppkey AND s_nationkey = n_nationkey AND n_regionkey = 1)
        ORDER BY value DESC
    """,
    "q12": """
        SELECT l_shipmode,
            sum(CASE WHEN o_orderpriority IN ('1-URGENT', '2-HIGH') THEN 1 ELSE 0 END) AS high_line_count,
            sum(CASE WHEN o_orderpriority NOT IN ('1-URGENT', '2-HIGH') THEN 1 ELSE 0 END) AS low_line_count
        FROM orders, lineitem
        WHERE o_orderkey = l_orderkey AND l_shipmode IN ('MAIL', 'SHIP')
            AND l_commitdate < l_receiptdate AND l_shipdate < l_commitdate
            AND l_receiptdate >= DATE '1994-01-01' AND l_receiptdate < DATE '1995-01-01'
        GROUP BY l_shipmode
        ORDER BY l_shipmode
    """,
    "q13": """
        SELECT c_count, count(*) AS custdist
        FROM (
            SELECT c_custkey, count(o_orderkey) AS c_count
            FROM customer LEFT JOIN orders
                ON c_custkey = o_custkey AND o_comment NOT LIKE '%special%requests%'
            GROUP BY c_custkey)
        GROUP BY c_count
        ORDER BY custdist DESC, c_count DESC
    """,
    "q14": """
        SELECT 100.00 * sum(CASE WHEN p_type LIKE 'PROMO%'
                THEN l_extendedprice * (1 - l_discount) ELSE 0 END)
            / sum(l_extendedprice * (1 - l_discount)) AS promo_revenue
        FROM lineitem, part
        WHERE l_partkey = p_partkey AND l_shipdate >= DATE '1995-09-01'
            AND l_shipdate < DATE '1995-09-01' + INTERVAL 1 MONTH
    """,
    "q15": """
        WITH revenue AS (
            SELECT l_suppkey AS supplier_no, sum(l_extendedprice * (1 - l_discount)) AS total_revenue
            FROM lineitem
            WHERE l_shipdate >= DATE '1996-01-01'
                AND l_shipdate < DATE '1996-01-01' + INTERVAL 3 MONTHS
            GROUP BY l_suppkey)
        SELECT s_suppkey, s_name, s_address, s_phone, total_revenue
        FROM supplier, revenue
        WHERE s_suppkey = supplier_no
            AND total_revenue = (SELECT max(total_revenue) FROM revenue)
        ORDER BY s_suppkey
    """,
    "q16": """
        SELECT p_brand, p_type, p_size, count(DISTINCT ps_suppkey) AS supplier_cnt
        FROM partsupp, part
        WHERE p_partkey = ps_partkey AND p_brand <> 'Brand#45'
            AND p_type NOT LIKE 'MEDIUM POLISHED%' AND p_size IN (49, 14, 23, 45, 19, 3, 36, 9)
            AND ps_suppkey NOT IN (
                SELECT s_suppkey FROM supplier WHERE s_comment LIKE '%final%')
        GROUP BY p_brand, p_type, p_size
        ORDER BY supplier_cnt DESC, p_brand, p_type, p_size
    """,
    "q17": """
        SELECT sum(l_extendedprice) / 7.0 AS avg_yearly
        FROM lineitem, part
        WHERE p_partkey = l_partkey AND p_brand LIKE 'Brand#2%' AND p_container LIKE '%BOX'
            AND l_quantity < (
                SELECT 0.5 * avg(l_quantity) FROM lineitem WHERE l_partkey = p_partkey)
    """,
    "q18": """
        SELECT c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice, sum(l_quantity) AS quantity
        FROM customer, orders, lineitem
        WHERE o_orderkey IN (
                SELECT l_orderkey FROM lineitem GROUP BY l_orderkey HAVING sum(l_quantity) > 250)
            AND c_custkey = o_custkey AND o_orderkey = l_orderkey
        GROUP BY c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice
        ORDER BY o_totalprice DESC, o_orderdate
        LIMIT 100
    """,
    "q19": """
        SELECT sum(l_extendedprice * (1 - l_discount)) AS revenue
        FROM lineitem, part
        WHERE l_partkey = p_partkey AND l_shipinstruct = 'DELIVER IN PERSON'
            AND l_shipmode IN ('AIR', 'REG AIR')
            AND ((p_brand LIKE 'Brand#1%' AND p_container LIKE 'SM%'
                    AND l_quantity BETWEEN 1 AND 11 AND p_size BETWEEN 1 AND 5)
                OR (p_brand LIKE 'Brand#2%' AND p_container LIKE 'MED%'
                    AND l_quantity BETWEEN 10 AND 20 AND p_size BETWEEN 1 AND 10)
                OR (p_brand LIKE 'Brand#3%' AND p_container LIKE 'LG%'
                    AND l_quantity BETWEEN 20 AND 30 AND p_size BETWEEN 1 AND 15))
    """,
    "q20": """
        SELECT s_name, s_address
        FROM supplier, nation
        WHERE s_suppkey IN (
                SELECT ps_suppkey FROM partsupp
                WHERE ps_partkey IN (SELECT p_partkey FROM part WHERE p_name LIKE '%e%')
                    AND ps_availqty > (
                        SELECT 0.5 * sum(l_quantity) FROM lineitem
                        WHERE l_partkey = ps_partkey AND l_suppkey = ps_suppkey
                            AND l_shipdate >= DATE '1994-01-01'
                            AND l_shipdate < DATE '1995-01-01'))
            AND s_nationkey = n_nationkey AND n_regionkey IN (0, 1, 2)
        ORDER BY s_name
    """,
    "q21": """
        SELECT s_name, count(*) AS numwait
        FROM supplier, lineitem l1, orders, nation
        WHERE s_suppkey = l1.l_suppkey AND o_orderkey = l1.l_orderkey AND o_orderstatus = 'F'
            AND l1.l_receiptdate > l1.l_commitdate
            AND EXISTS (SELECT * FROM lineitem l2
                WHERE l2.l_orderkey = l1.l_orderkey AND l2.l_suppkey <> l1.l_suppkey)
            AND NOT EXISTS (SELECT * FROM lineitem l3
                WHERE l3.l_orderkey = l1.l_orderkey AND l3.l_suppkey <> l1.l_suppkey
                    AND l3.l_receiptdate > l3.l_commitdate)
            AND s_nationkey = n_nationkey AND n_regionkey IN (1, 4)
        GROUP BY s_name
        ORDER BY numwait DESC, s_name
        LIMIT 100
    """,
    "q22": """
        SELECT cntrycode, count(*) AS numcust, sum(c_acctbal) AS totacctbal
        FROM (
            SELECT substring(c_phone, 1, 2) AS cntrycode, c_acctbal
            FROM customer
            WHERE substring(c_phone, 1, 2) IN ('13', '31', '23', '29', '30', '18', '17')
                AND c_acctbal > (
                    SELECT avg(c_acctbal) FROM customer
                    WHERE c_acctbal > 0.00
                        AND substring(c_phone, 1, 2) IN ('13', '31', '23', '29', '30', '18', '17'))
                AND NOT EXISTS (SELECT * FROM orders WHERE o_custkey = c_custkey))
        GROUP BY cntrycode
        ORDER BY cntrycode
    """,
}


@dataclass(frozen=True)
class Refresh:
    """One change of a table: an `upsert` of whole rows, or a `delete`."""

    table: str
    operation: str
    rows: pa.Table


def generate(folder: Path, scale: float) -> dict[str, pa.Table]:
    """Generate all tables at a scale factor (1 is about 1 GB)."""
    program = Path(sys.executable).with_name("tpchgen-cli")
    arguments = ["parquet", "--scale-factor", str(scale), "--output-dir", str(folder)]
    subprocess.run([program, *arguments], check=True, capture_output=True)
    return {name: _plain(pq.read_table(folder / f"{name}.parquet")) for name in KEYS}


def _plain(table: pa.Table) -> pa.Table:
    """Cast string views and large strings to strings, which Spark supports."""
    views = [
        pa.field(f.name, pa.string() if f.type in (pa.string_view(), pa.large_string()) else f.type)
        for f in table.schema
    ]
    return table.cast(pa.schema(views))


def refreshed(table: pa.Table, refresh: Refresh, key: Sequence[str]) -> pa.Table:
    """Return a table after a refresh, computed without Eddyline."""
    kept = table.join(refresh.rows.select(key), list(key), join_type="left anti")
    kept = kept.select(table.column_names)
    if refresh.operation == "upsert":
        kept = pa.concat_tables([kept, refresh.rows])
    return kept.combine_chunks()


class Data:
    """The expected tables after each refresh, computed without Eddyline."""

    def __init__(self, tables: dict[str, pa.Table]) -> None:
        orders, lines = tables["orders"], tables["lineitem"]
        held_back = pc.equal(pc.bit_wise_and(orders["o_orderkey"], 7), 3)
        self._new_orders = orders.filter(held_back)
        later = pc.is_in(lines["l_orderkey"], self._new_orders["o_orderkey"].combine_chunks())
        self._new_lines = lines.filter(later)
        first = {
            "orders": orders.filter(pc.invert(held_back)),
            "lineitem": lines.filter(pc.invert(later)),
        }
        self.tables = {**tables, **first}

    def refreshes(self) -> list[list[Refresh]]:
        """Return the refreshes of each epoch: new orders; deletes of old orders; updates; all three; new orders."""
        thirds = [self._part(i) for i in range(3)]
        return [
            thirds[0],
            self._old_orders(5),
            self._updates(1),
            [*thirds[1], *self._old_orders(6), *self._updates(2)],
            thirds[2],
        ]

    def apply(self, refresh: Refresh) -> None:
        """Apply a refresh to the expected tables."""
        table = self.tables[refresh.table]
        self.tables[refresh.table] = refreshed(table, refresh, KEYS[refresh.table])

    def _part(self, number: int) -> list[Refresh]:
        return [
            Refresh(name, "upsert", _thirds(rows, key, number))
            for name, rows, key in (
                ("orders", self._new_orders, "o_orderkey"),
                ("lineitem", self._new_lines, "l_orderkey"),
            )
        ]

    def _old_orders(self, residue: int) -> list[Refresh]:
        return [
            Refresh(name, "delete", rows.filter(pc.equal(pc.bit_wise_and(rows[key], 7), residue)))
            for name, key in (("orders", "o_orderkey"), ("lineitem", "l_orderkey"))
            for rows in (self.tables[name],)
        ]

    def _updates(self, seed: int) -> list[Refresh]:
        random = np.random.default_rng(seed)
        customers, suppliers = self.tables["customer"], self.tables["supplier"]
        some = customers.take(
            random.choice(customers.num_rows, customers.num_rows // 5, replace=False)
        )
        at = some.column_names.index("c_acctbal")
        cents = random.integers(-90_000, 900_000, some.num_rows)
        balances = [Decimal(int(c)).scaleb(-2) for c in cents]
        some = some.set_column(at, "c_acctbal", pa.array(balances, some.schema.field(at).type))
        moved = suppliers.take(random.choice(suppliers.num_rows, 3, replace=False))
        at = moved.column_names.index("s_nationkey")
        nations = pa.array(random.integers(0, 25, moved.num_rows))
        moved = moved.set_column(at, "s_nationkey", nations.cast(moved.schema.field(at).type))
        return [Refresh("customer", "upsert", some), Refresh("supplier", "upsert", moved)]


def _thirds(rows: pa.Table, key: str, number: int) -> pa.Table:
    residue = rows[key].to_numpy() // 8 % 3
    return rows.filter(pa.array(residue == number))
