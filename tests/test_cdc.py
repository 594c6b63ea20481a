"""AUTO CDC: change records in any order become the table that they describe, at every epoch."""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import eddyline as el
from eddyline.errors import EddylineError

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

COLUMNS = "region STRING, id INT, name STRING, n INT, seq BIGINT, op STRING"
FLOW = "CREATE FLOW f AS AUTO CDC INTO {} FROM STREAM(changes) KEYS (region, id)\n"
FLOWS = {
    "current": FLOW
    + "APPLY AS DELETE WHEN op = 'd' APPLY AS TRUNCATE WHEN op = 't' SEQUENCE BY seq COLUMNS * EXCEPT (op)",
    # other records may be deletes: `x > 1` of NULL is no
    "upserts": FLOW
    + "SEQUENCE BY struct(seq, n IS NULL) COLUMNS (id, region, n) APPLY AS DELETE WHEN n > 1",
    "history": FLOW
    + "APPLY AS DELETE WHEN op = 'd' SEQUENCE BY seq COLUMNS (region, id, name, n) STORED AS SCD TYPE 2",
}
Record = dict[str, Any]
Rows = list[tuple[Any, ...]]

RECORDS = st.builds(
    lambda region, number, name, n, seq, op: {
        "region": None if op == "t" else region,
        "id": None if op == "t" else number,
        "name": name,
        "n": n,
        "seq": seq,
        "op": op,
    },
    st.sampled_from("EW"),
    st.integers(1, 2),
    st.one_of(st.none(), st.sampled_from("ab")),
    st.one_of(st.none(), st.integers(0, 2)),
    st.integers(0, 12),
    st.sampled_from("ccuuudt"),
)
EPOCHS = st.lists(
    st.tuples(st.lists(RECORDS, min_size=3, max_size=12), st.booleans()), min_size=3, max_size=4
)
SETTINGS = settings(
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


# --- what AUTO CDC means, applied to one record after another ---


def least_first(value: Any) -> tuple[bool, Any]:
    """Sorts NULL before all values."""
    return (value is not None, value)


def in_order(records: list[Record], deleted: str) -> list[Record]:
    """Return the records as they count: a later one replaces one of the same key and sequence value."""

    def place(record: Record) -> tuple[Any, ...]:
        values = [least_first(record[name]) for name in ("name", "n")]
        # of one moment: upserts by their values, then deletes, then truncates
        return (record["seq"], ["c", deleted, "t"].index(kind(record, deleted)), values)

    return sorted(records, key=place)


def kind(record: Record, deleted: str) -> str:
    return record["op"] if record["op"] in (deleted, "t") else "c"


def current(records: list[Record]) -> Rows:
    held: dict[Any, Record] = {}
    for record in in_order(records, "d"):
        key = record["region"], record["id"]
        if record["op"] == "t":
            held.clear()
        elif record["op"] == "d":
            held.pop(key, None)
        else:
            held[key] = record
    return rows([[r[c] for c in ("region", "id", "name", "n", "seq")] for r in held.values()])


def upserts(records: list[Record]) -> Rows:
    held: dict[Any, Record] = {}
    order = [r for r in records if r["op"] != "t"]
    order.sort(key=lambda r: (r["seq"], r["n"] is None, (r["n"] or 0) > 1, least_first(r["n"])))
    for record in order:
        held[record["region"], record["id"]] = record
    alive = [r for r in held.values() if not (r["n"] or 0) > 1]
    return rows([[r["id"], r["region"], r["n"]] for r in alive])


def history(records: list[Record]) -> Rows:
    last: dict[Any, Record] = {}
    for record in in_order([r for r in records if r["op"] != "t"], "d"):
        last[record["region"], record["id"], record["seq"]] = record
    versions: list[list[Any]] = []
    held: dict[Any, list[Any]] = {}
    for (region, number, seq), record in sorted(last.items()):
        key, values = (region, number), [region, number, record["name"], record["n"]]
        present = held.get(key)
        if present is not None and record["op"] != "d" and present[:4] == values:
            continue
        if present is not None:
            present[5] = seq
            del held[key]
        if record["op"] != "d":
            held[key] = [*values, seq, None]
            versions.append(held[key])
    return rows(versions)


def rows(found: Any) -> Rows:
    return sorted((tuple(row) for row in found), key=repr)


ORACLES = {"current": current, "upserts": upserts, "history": history}


# --- the tests ---


class Fed:
    """An engine with the flows, and the records that it has been given."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.folder, self.spark, self.files = folder, spark, 0
        (folder / "in").mkdir(parents=True)
        self.records: list[Record] = []
        self.open()

    def open(self) -> None:
        self.engine = el.Engine(str(self.folder / "storage"), spark=self.spark)
        # truncates have no key
        options = {"path": str(self.folder / "in")}
        self.engine.create_stream("all_changes", COLUMNS, "json", options)
        self.engine.view("keyed", "SELECT * FROM all_changes WHERE op <> 't'")
        for name, statement in FLOWS.items():
            source = "all_changes" if name == "current" else "keyed"
            self.engine.execute(statement.format(name).replace("changes", source))

    def arrive(self, records: list[Record]) -> None:
        self.records += records
        self.files += 1
        hidden = self.folder / "in" / f".{self.files}.json"
        hidden.write_text("".join(json.dumps(record) + "\n" for record in records))
        hidden.rename(self.folder / "in" / f"{self.files}.json")
        self.engine.advance()

    def check(self) -> None:
        report = self.engine.verify()
        assert report, report
        assert not report.failing
        for name, oracle in ORACLES.items():
            assert rows(self.engine.snapshot(name).collect()) == oracle(self.records), name

    def run(self, epochs: list[tuple[list[Record], bool]]) -> None:
        try:
            for records, reopened in epochs:
                if reopened:
                    self.engine.stop()
                    self.open()
                self.arrive(records)
                self.check()
        finally:
            self.engine.stop()


@pytest.fixture(scope="module")
def numbers() -> Iterator[int]:
    return iter(range(10_000))


def test_records_in_any_order(tmp_path: Path, spark: SparkSession) -> None:
    chance = random.Random(4)

    def record() -> Record:
        op = chance.choice("ccuuudt")
        key = {"region": chance.choice("EW"), "id": chance.randint(1, 2)}
        return {
            **(dict.fromkeys(key) if op == "t" else key),
            "name": chance.choice([None, "a", "b"]),
            "n": chance.choice([None, 0, 1, 2]),
            "seq": chance.randint(0, 12),
            "op": op,
        }

    epochs = [([record() for _ in range(14)], reopened) for reopened in (False, True, False)]
    Fed(tmp_path, spark).run(epochs)


@pytest.mark.slow
@settings(SETTINGS, max_examples=25)
@given(epochs=EPOCHS)
def test_many_records_in_any_order(
    epochs: Any, tmp_path: Path, spark: SparkSession, numbers: Iterator[int]
) -> None:
    Fed(tmp_path / str(next(numbers)), spark).run(epochs)


LOG = (
    "id BIGINT, name STRING, at STRUCT<ts: INT, n: INT>, tags MAP<STRING, INT>, seq INT, op STRING"
)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[el.Engine]:
    with el.Engine(str(tmp_path_factory.mktemp("cdc")), spark=spark) as engine:
        engine.table("log", LOG)
        yield engine


def test_a_target_is_a_view(engine: el.Engine) -> None:
    """It has row keys for consumers, columns of any type, and follows retracted records."""
    log = engine.table("log", LOG)
    with warnings.catch_warnings():
        warnings.simplefilter("error", el.StateGrowthWarning)
        users = engine.auto_cdc(
            "users",
            "log",
            ["ID"],
            "at -- a struct",
            apply_as_deletes="op = 'd' -- that's all",
            except_column_list=["OP", "seq"],
        )
    again = engine.auto_cdc(
        "users", "log", ["ID"], "at -- a struct",
        apply_as_deletes="op = 'd' -- that's all", except_column_list=["OP", "seq"],
    )  # fmt: skip
    assert again.name == users.name
    first, second = (1, "a", (1, 9), {"x": 1}, 1, "c"), (1, "b", (2, 0), {"y": 2}, 1, "u")
    same_moment = (1, "b", (2, 0), {"y": 3}, 1, "u")
    log.insert([second, same_moment])
    before = engine.advance()
    log.insert([first])
    engine.advance()
    assert [tuple(row) for row in users.snapshot().collect()] == [(1, "b", (2, 0), {"y": 3})]
    log.delete([second, same_moment])
    engine.advance()
    (change,) = users.changes(after=before, form="update").collect()
    assert (change.before.name, change.after.name) == ("b", "a")
    assert engine.verify("users")
    engine.execute("DROP VIEW users")
    log.delete([first])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"keys": []}, "name the columns"),
        ({"keys": ["idx"]}, "no column idx"),
        ({"keys": ["id", "ID"]}, "KEYS names column ID twice"),
        ({"sequence_by": "seqq"}, "Did you mean"),
        ({"sequence_by": "seq, id"}, "PARSE_SYNTAX_ERROR"),
        ({"sequence_by": "seq AS s"}, "PARSE_SYNTAX_ERROR"),
        ({"sequence_by": "tags"}, "map<string,int>, which has no order"),
        ({"sequence_by": "rand()"}, "isn't deterministic"),
        ({"apply_as_deletes": "op = 'd') OR (true"}, "PARSE_SYNTAX_ERROR"),
        ({"apply_as_deletes": "op"}, "is of type string"),
        ({"apply_as_truncates": "seq"}, "is of type int"),
        ({"column_list": ["name"]}, "the key column id isn't one"),
        ({"column_list": ["id"], "except_column_list": ["op"]}, "give one of"),
        ({"except_column_list": ["opp"]}, "no column opp"),
        ({"stored_as_scd_type": 3}, "choose of 1, 2"),
        ({"stored_as_scd_type": 2, "apply_as_truncates": "op = 't'"}, "with SCD type 2 is not"),
        ({"stored_as_scd_type": "2"}, "column tags is of type map"),
        ({"source": "nothing"}, "named nothing"),
        ({"source": "reserved"}, "itself names a column __deleted"),
    ],
    ids=lambda given: str(given)[:40],
)
def test_refusals(engine: el.Engine, arguments: dict[str, Any], message: str) -> None:
    engine.view("reserved", "SELECT *, op AS __deleted FROM log")
    given = {"target": "x", "source": "log", "keys": ["id"], "sequence_by": "seq", **arguments}
    with pytest.raises(EddylineError) as caught:
        engine.auto_cdc(**given)
    assert message in str(caught.value)
    assert engine.catalog.find("x") is None


def test_a_sequence_of_several_columns(engine: el.Engine) -> None:
    """A part that is never NULL, within an __END_AT that is."""
    log = engine.table("log", LOG)
    rows = [(1, name, None, None, seq, "c") for name, seq in (("c", 3), ("a", 1), ("b", 2))]
    log.insert(rows)
    sequence, columns = "struct(seq, 7 AS part)", ["id", "name"]
    view = engine.auto_cdc(
        "versions", "log", ["id"], sequence, column_list=columns, stored_as_scd_type=2
    )
    engine.advance()
    assert sorted(tuple(row) for row in view.snapshot().collect()) == [
        (1, "a", (1, 7), (2, 7)),
        (1, "b", (2, 7), (3, 7)),
        (1, "c", (3, 7), None),
    ]
    assert engine.verify("versions")
    engine.drop("view", "versions")
    log.delete(rows)


@pytest.mark.parametrize("scd_type", [1, 2])
def test_records_without_key_or_sequence(engine: el.Engine, scd_type: int) -> None:
    """As in Spark they are an error, which names the record; the view comes back without them."""
    log, name = engine.table("log", LOG), f"strict{scd_type}"
    view = engine.auto_cdc(
        name, "log", ["id"], "seq", column_list=["id", "name"], stored_as_scd_type=scd_type
    )
    good = (1, "a", None, None, 1, "c")
    for wrong, message in (
        ((None, "b", None, None, 2, "c"), "NULL in the key column id"),
        ((2, "b", None, None, None, "c"), "NULL as its SEQUENCE BY value"),
    ):
        log.insert([good, wrong])
        engine.advance()
        assert engine.verify().failing
        with pytest.raises(EddylineError, match="VIEW_FAILING") as caught:
            view.snapshot()
        assert message in str(caught.value)
        log.delete([wrong])
        engine.advance()
        assert [row.name for row in view.snapshot().collect()] == ["a"]
        log.delete([good])
        engine.advance()
    engine.drop("view", name)


def test_debezium_envelopes(engine: el.Engine) -> None:
    """With and without `payload`, out of order, with tombstones, a truncate and a key that changes."""
    documents = engine.table("documents", "value STRING")
    engine.execute("""
        CREATE VIEW person_changes AS
        SELECT coalesce(c.after.id, c.before.id) AS id, c.after.name, c.op, c.source.lsn
        FROM (
            SELECT from_json(
                coalesce(get_json_object(value, '$.payload'), value),
                'before STRUCT<id: BIGINT>, after STRUCT<id: BIGINT, name: STRING>, op STRING,
                 source STRUCT<lsn: BIGINT>') AS c
            FROM documents
            WHERE value <> 'null');
        CREATE FLOW f AS AUTO CDC INTO persons FROM person_changes KEYS (id)
        APPLY AS DELETE WHEN op = 'd' APPLY AS TRUNCATE WHEN op = 't' SEQUENCE BY lsn COLUMNS (id, name);
    """)

    def put(*changes: Any, payload: bool = False) -> set[tuple[Any, ...]]:
        found: list[tuple[str | None]] = []
        for change in changes:
            if change in (None, "null"):
                found.append((change,))
                continue
            op, lsn, before, after = change
            envelope = {"before": before, "after": after, "op": op, "source": {"lsn": lsn}}
            envelope["ts_ms"] = lsn
            found.append(
                (json.dumps({"schema": {}, "payload": envelope} if payload else envelope),)
            )
        documents.insert(found)
        engine.advance()
        return {tuple(row) for row in engine.snapshot("persons").collect()}

    ann, bob = {"id": 1, "name": "Ann"}, {"id": 2, "name": "Bob"}
    assert put(("r", 10, None, ann), ("u", 30, ann, {"id": 1, "name": "Anne"})) == {(1, "Anne")}
    assert put(("u", 20, ann, {"id": 1, "name": "An"}), payload=True) == {(1, "Anne")}
    assert put(("d", 50, {"id": 2}, None), None, "null", payload=True) == {(1, "Anne")}
    assert put(("c", 40, None, bob)) == {(1, "Anne")}  # came after its delete
    moved = put(("d", 60, {"id": 1}, None), None, ("c", 61, None, {"id": 7, "name": "Anne"}))
    assert moved == {(7, "Anne")}
    assert put(("c", 71, None, bob), ("t", 70, None, None)) == {(2, "Bob")}
    assert engine.verify()
    documents.insert([("{not a document",)])
    engine.advance()
    with pytest.raises(EddylineError, match="AUTO CDC: a record has NULL"):
        engine.snapshot("persons")
