"""The query that MERGE becomes: one row for each change of the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from eddyline.sql.dml import DELETE, INSERT, OF_SOURCE, OF_TABLE, PAIRS
from eddyline.sql.forms import Merge, When
from eddyline.sql.names import quoted


@dataclass(frozen=True, slots=True)
class MergeQuery:
    """Makes the query of a MERGE.

    Its rows are the changed ones: the columns of the table as they are, and as they are to be, then whether the old
    row leaves, and whether the new one comes. The former is NULL if several rows of the source change one row of the table.

    The clauses of pairs see the columns of both sides, the others those of one side only, as in Spark: a name that both sides
    have means that of the side. So their expressions are in lateral subqueries over the columns of that side.

    Attributes:
        columns: names of the columns of the table.
        types: their types, as SQL.
        defaults: the expressions of the columns that have one, for rows that are inserted without them.
        given: names of the columns of the source, which `source_query` has.
    """

    merge: Merge
    columns: Sequence[str]
    types: Sequence[str]
    defaults: Mapping[str, str]
    given: Sequence[str]

    def text(self) -> str:
        """Return the query."""
        kinds = [of for of in (PAIRS, OF_SOURCE, OF_TABLE) if self._clauses(of)]
        chosen = f"coalesce({', '.join(map(_number, kinds))})"
        after = [
            f"CASE {' '.join(f'WHEN {_number(of)} IS NOT NULL THEN {_new(of, place)}' for of in kinds)} END"
            for place in range(len(self.columns))
        ]
        leaves = self._are(chosen, lambda clause: clause.action != INSERT)
        comes = self._are(chosen, lambda clause: clause.action != DELETE)
        old = ", ".join(_old(place) for place in range(len(self.columns)))
        rows = f"{self._rows(kinds)} WHERE {chosen} IS NOT NULL"
        pairs = self._clauses(PAIRS)
        if not pairs:
            return f"SELECT {old}, {', '.join(after)}, {leaves}, {comes} FROM {rows}"
        # the row of the source, where there is none of the table: both are numbered from 0
        by = f"coalesce({_TABLE_ROW}, -1 - {_SOURCE_ROW})"
        nth = f"row_number() OVER (PARTITION BY {by} ORDER BY {by})"
        numbered = f"(SELECT *, {nth} AS {_NTH} FROM {rows})"
        if [(one.action, one.condition) for _, one in pairs] == [(DELETE, None)]:
            numbered += (
                f" WHERE {_NTH} = 1"  # a row is deleted once, whatever number of rows it matches
            )
        once = f"CASE WHEN {_NTH} = 1 THEN {leaves} END"
        return f"SELECT {old}, {', '.join(after)}, {once}, {comes} FROM {numbered}"

    def _rows(self, kinds: Sequence[str]) -> str:
        """Return the FROM clause that has for each joined row the clause that applies, and its values."""
        laterals = [self._of_one_side(of) for of in kinds if of != PAIRS]
        return ", LATERAL ".join([f"({self._joined(kinds)})", *laterals])

    def _joined(self, kinds: Sequence[str]) -> str:
        """Return the query of both sides joined, with the clauses of pairs."""
        merge, pairs = self.merge, self._clauses(PAIRS)
        how = "FULL" if {OF_SOURCE, OF_TABLE} <= {*kinds} else ""
        how = how or ("RIGHT" if OF_SOURCE in kinds else "LEFT" if OF_TABLE in kinds else "INNER")
        shown = [
            f"{self._table}.{quoted(c)} AS {_old(place)}" for place, c in enumerate(self.columns)
        ]
        shown += [
            f"{self._source}.{quoted(c)} AS {_given(place)}" for place, c in enumerate(self.given)
        ]
        if pairs:
            both = f"{_TABLE_ROW} IS NOT NULL AND {_SOURCE_ROW} IS NOT NULL"
            shown += [f"{_first(pairs, both)} AS {_number(PAIRS)}", *self._values(PAIRS)]
        row = "monotonically_increasing_id()"
        return (
            f"SELECT {_TABLE_ROW}, {_SOURCE_ROW}, {', '.join(shown)} FROM "
            f"(SELECT *, {row} AS {_TABLE_ROW} FROM {quoted(merge.table)}) AS {self._table} {how} JOIN "
            f"(SELECT *, {row} AS {_SOURCE_ROW} FROM {merge.source_text}) AS {self._source} "
            f"ON ({merge.condition}\n)"
        )

    def _of_one_side(self, of: str) -> str:
        """Return a subquery with the clauses of rows that have no partner."""
        name, other, columns, alias = (
            (_given, _TABLE_ROW, self.given, self._source)
            if of == OF_SOURCE
            else (_old, _SOURCE_ROW, self.columns, self._table)
        )
        own = ", ".join(f"{name(place)} AS {quoted(c)}" for place, c in enumerate(columns))
        first = _first(self._clauses(of), f"{other} IS NULL")
        values = ", ".join(self._values(of))
        return (
            f"(SELECT {_number(of)}, {values} FROM (SELECT *, {first} AS {_number(of)} "
            f"FROM (SELECT {own}) AS {alias}) AS {alias}) AS {_number(of)}"
        )

    def _values(self, of: str) -> list[str]:
        """Return for each column its value after a clause."""
        clauses = self._clauses(of)
        found = []
        for place, (column, kind) in enumerate(zip(self.columns, self.types, strict=True)):
            same = f"{self._table}.{quoted(column)}"
            if of == OF_SOURCE:
                same = self.defaults.get(column, "NULL")
            cases = [
                f"WHEN {number} THEN CAST(({self._value(clause, column, same)}\n) AS {kind})"
                for number, clause in clauses
            ]
            found.append(f"CASE {_number(of)} {' '.join(cases)} END AS {_new(of, place)}")
        return found

    def _value(self, clause: When, column: str, same: str) -> str:
        """Return the expression of a column after a clause."""
        if clause.values is None:
            return f"{self._source}.{quoted(column)}"
        given = {name.lower(): text for name, text in clause.values}
        return given.get(column.lower(), same)

    def _clauses(self, of: str) -> list[tuple[int, When]]:
        return [(n, one) for n, one in enumerate(self.merge.clauses) if one.of == of]

    @property
    def _table(self) -> str:
        return quoted(self.merge.alias or self.merge.table)

    @property
    def _source(self) -> str:
        return quoted(self.merge.source or "eddyline source")

    def _are(self, chosen: str, test: Callable[[When], bool]) -> str:
        """Return the condition that the clause of a row passes a test."""
        numbers = [str(n) for n, one in enumerate(self.merge.clauses) if test(one)]
        return f"{chosen} IN ({', '.join(numbers)})" if numbers else "false"


def source_query(merge: Merge) -> str:
    """Return a query of all columns of the source."""
    return f"SELECT * FROM {merge.source_text}"


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
