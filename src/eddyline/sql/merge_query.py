"""The query that MERGE becomes: one row for each change of the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from eddyline.sql.default_words import with_default
from eddyline.sql.dml import DELETE, INSERT, OF_SOURCE, OF_TABLE, PAIRS
from eddyline.sql.forms import Merge, When
from eddyline.sql.names import quoted


@dataclass(frozen=True, slots=True)
class MergeQuery:
    """Makes the query of a MERGE.

    Its rows are the changed ones: the columns of the table as they are, and as they are to be, then two flags: whether the
    old row leaves, and whether the new one comes. The first flag is NULL if several rows of the source change one row of the table.

    The clauses of pairs see the columns of both sides, the others those of one side only, as in Spark: a name that both sides
    have means that of the side. So each kind is a SELECT of its own over the joined rows, in which one side has its names again.

    Attributes:
        columns: names of the columns of the table.
        types: their types, as SQL.
        defaults: the expressions of the columns that have one, by name in lower case.
        given: names of the columns of the source, which `source_query` has.
        by_name: returns a value that a clause of a kind gives a column, with the fields of structs in the column's order.
    """

    merge: Merge
    columns: Sequence[str]
    types: Sequence[str]
    defaults: Mapping[str, str]
    given: Sequence[str]
    by_name: Callable[[str, str, str], str]

    def text(self) -> str:
        """Return the query."""
        return f"{self.merge.tables_text} {self._rows()}"

    def _rows(self) -> str:
        kinds = [of for of in (PAIRS, OF_SOURCE, OF_TABLE) if self._clauses(of)]
        chosen = f"coalesce({', '.join(map(_number, kinds))})"
        after = [
            f"CASE {' '.join(f'WHEN {_number(of)} IS NOT NULL THEN {_new(of, place)}' for of in kinds)} END"
            for place in range(len(self.columns))
        ]
        leaves = self._are(chosen, lambda clause: clause.action != INSERT)
        comes = self._are(chosen, lambda clause: clause.action != DELETE)
        old = ", ".join(_old(place) for place in range(len(self.columns)))
        rows = f"({self._with_clauses(kinds)}) WHERE {chosen} IS NOT NULL"
        pairs = self._clauses(PAIRS)
        if not pairs:
            return f"SELECT {old}, {', '.join(after)}, {leaves}, {comes} FROM {rows}"
        # the row of the source, where there is none of the table: both are numbered from 0
        by = f"coalesce({_TABLE_ROW}, -1 - {_SOURCE_ROW})"
        nth = f"row_number() OVER (PARTITION BY {by} ORDER BY {by})"
        numbered = f"(SELECT *, {nth} AS {_NTH} FROM {rows})"
        if [(one.action, one.condition) for _, one in pairs] == [(DELETE, None)]:
            # a row is deleted once, whatever number of rows it matches
            numbered += f" WHERE {_NTH} = 1"
        once = f"CASE WHEN {_NTH} = 1 THEN {leaves} END"
        return f"SELECT {old}, {', '.join(after)}, {once}, {comes} FROM {numbered}"

    def _with_clauses(self, kinds: Sequence[str]) -> str:
        """Return the query of both sides joined, with the clause that applies to each row, and its values."""
        merge, pairs = self.merge, self._clauses(PAIRS)
        how = "FULL" if {OF_SOURCE, OF_TABLE} <= {*kinds} else ""
        how = how or ("RIGHT" if OF_SOURCE in kinds else "LEFT" if OF_TABLE in kinds else "INNER")
        old = {_old(place): quoted(name) for place, name in enumerate(self.columns)}
        names = [name.lower() for name in self.given]
        given = {
            _given(place): quoted(name)
            for place, name in enumerate(self.given)
            if OF_SOURCE in kinds and names.count(name.lower()) == 1
        }
        shown = [f"{self._table}.{name} AS {own}" for own, name in old.items()]
        shown += [f"{self._source}.{name} AS {own}" for own, name in given.items()]
        if pairs:
            both = f"{_TABLE_ROW} IS NOT NULL AND {_SOURCE_ROW} IS NOT NULL"
            shown += [f"{_first(pairs, both)} AS {_number(PAIRS)}", *self._values(PAIRS)]
        row = "monotonically_increasing_id()"
        rows = (
            f"SELECT {_TABLE_ROW}, {_SOURCE_ROW}, {', '.join(shown)} FROM "
            f"(SELECT *, {row} AS {_TABLE_ROW} FROM {quoted(merge.table)}) AS {self._table} {how} JOIN "
            f"(SELECT *, {row} AS {_SOURCE_ROW} FROM {merge.source_text}) AS {self._source} "
            f"ON ({merge.condition}\n)"
        )
        kept = [_TABLE_ROW, _SOURCE_ROW, *old, *given, *(self._made(PAIRS) if pairs else ())]
        for of, own, other, alias in (
            (OF_SOURCE, given, _TABLE_ROW, self._source),
            (OF_TABLE, old, _SOURCE_ROW, self._table),
        ):
            if of in kinds:
                named = ", ".join([*kept, *(f"{column} AS {name}" for column, name in own.items())])
                first = f"{_first(self._clauses(of), f'{other} IS NULL')} AS {_number(of)}"
                values = ", ".join([first, *self._values(of)])
                rows = f"SELECT {', '.join(kept)}, {values} FROM (SELECT {named} FROM ({rows})) AS {alias}"
                kept += self._made(of)
        return rows

    def _made(self, of: str) -> list[str]:
        """Return the columns that the clauses of a kind make."""
        return [_number(of), *(_new(of, place) for place in range(len(self.columns)))]

    def _values(self, of: str) -> list[str]:
        """Return for each column its value after the clause of a kind that applies."""
        found = []
        for place, (column, kind) in enumerate(zip(self.columns, self.types, strict=True)):
            same = f"{self._table}.{quoted(column)}"
            if of == OF_SOURCE:
                same = f"CAST({with_default('DEFAULT', column, self.defaults)} AS {kind})"
            cases = []
            for number, clause in self._clauses(of):
                value = self._given_value(clause, column)
                shown = same if value is None else f"CAST(({value}\n) AS {kind})"
                cases.append(f"WHEN {number} THEN {shown}")
            found.append(f"CASE {_number(of)} {' '.join(cases)} END AS {_new(of, place)}")
        return found

    def _given_value(self, clause: When, column: str) -> str | None:
        """Return the expression that a clause gives a column; None if it gives none."""
        if clause.values is None:
            value: str | None = f"{self._source}.{quoted(column)}"
        else:
            value = {name.lower(): text for name, text in clause.values}.get(column.lower())
        if value is None:
            return None
        return self.by_name(clause.of, column, with_default(value, column, self.defaults))

    def _clauses(self, of: str) -> list[tuple[int, When]]:
        return [(n, one) for n, one in enumerate(self.merge.clauses) if one.of == of]

    @property
    def _table(self) -> str:
        return quoted(self.merge.alias or self.merge.table)

    @property
    def _source(self) -> str:
        return quoted(self.merge.source or _SOURCE)

    def _are(self, chosen: str, test: Callable[[When], bool]) -> str:
        """Return the condition that the clause of a row passes a test."""
        numbers = [str(n) for n, one in enumerate(self.merge.clauses) if test(one)]
        return f"{chosen} IN ({', '.join(numbers)})" if numbers else "false"


def source_query(merge: Merge) -> str:
    """Return a query of all columns of the source."""
    return f"{merge.tables_text} SELECT * FROM {merge.source_text}"


def value_query(merge: Merge, of: str, value: str) -> str:
    """Return a query of a value that a clause of a kind gives, for its type."""
    sides = {
        OF_TABLE: f"{quoted(merge.table)} AS {quoted(merge.alias or merge.table)}",
        OF_SOURCE: f"(SELECT * FROM {merge.source_text}) AS {quoted(merge.source or _SOURCE)}",
    }
    rows = sides[of] if of in sides else " CROSS JOIN ".join(sides.values())
    return f"{merge.tables_text} SELECT ({value}\n) FROM {rows}"


_SOURCE = "eddyline source"
# names with a space: the columns of users, in the same scope, hardly have them
_TABLE_ROW, _SOURCE_ROW, _NTH = "`eddyline table row`", "`eddyline source row`", "`eddyline nth`"


def _old(place: int) -> str:
    return f"`eddyline old {place}`"


def _given(place: int) -> str:
    return f"`eddyline given {place}`"


def _number(of: str) -> str:
    """Return the column with the number of the clause that applies to a row, among those of one kind."""
    return f"`eddyline {of.lower()}`"


def _new(of: str, place: int) -> str:
    return f"`eddyline {of.lower()} {place}`"


def _first(clauses: Sequence[tuple[int, When]], where: str) -> str:
    """Return an expression for the number of the first clause whose condition is true, NULL for none."""
    cases = [f"WHEN {where} AND ({one.condition or 'true'}\n) THEN {n}" for n, one in clauses]
    return f"CASE {' '.join(cases)} END"
