"""The definitions of a project: what its Python and SQL files register."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import pipelines
from pyspark.errors import PySparkException
from pyspark.pipelines.flow import Flow
from pyspark.pipelines.graph_element_registry import (
    GraphElementRegistry,
    graph_element_registration_context,
)
from pyspark.pipelines.output import MaterializedView, Output, Sink, StreamingTable, TemporaryView
from pyspark.pipelines.source_code_location import SourceCodeLocation
from pyspark.sql import DataFrame, SparkSession

from eddyline.errors import ScriptError
from eddyline.plan.catalyst import Catalyst
from eddyline.plan.statements import (
    CHANGES,
    FLOW,
    MATERIALIZED,
    STREAMING,
    Changes,
    Definition,
    definition,
    query_frame,
    setting,
    used_names,
)
from eddyline.spark.failures import message_of, query_errors
from eddyline.spark_pipelines.cdc import (
    ChangesFlow,
    changes_flow,
    listed,
    recorder,
    scd_type,
)
from eddyline.spark_pipelines.spec import INVALID, UNSUPPORTED, Spec
from eddyline.sql.lexer import split

if TYPE_CHECKING:
    from pyspark.pipelines.flow import AutoCdcFlow  # not in all versions

_AUTO_CDC = "create_auto_cdc_flow"
_DEFAULTS = ("spark_catalog", "default")  # Spark's catalog and database


@dataclass(slots=True)
class Project(GraphElementRegistry):
    """The datasets and flows of a project, by name in lower case.

    Attributes:
        spark: the session in which functions and queries are called.
        outputs: tables, views and sinks, as they were registered.
        flows: what writes each of them.
    """

    spec: Spec
    spark: SparkSession
    outputs: dict[str, Output] = field(default_factory=dict)
    flows: dict[str, list[Flow]] = field(default_factory=dict)

    def load(self) -> None:
        """Import the Python files and read the SQL files of the project, in its folder."""
        folder = self.spec.folder
        with chdir(folder), graph_element_registration_context(self), self._auto_cdc():
            for file in self.spec.files():
                if file.suffix == ".sql":
                    self.register_sql(file.read_text(encoding="utf-8"), file.relative_to(folder))
                    continue
                found = importlib.util.spec_from_file_location(file.stem, str(file))
                assert found is not None
                assert found.loader is not None
                module = importlib.util.module_from_spec(found)
                module.__dict__["spark"] = self.spark
                try:
                    found.loader.exec_module(module)
                except PySparkException as error:
                    at = str(file.relative_to(folder))
                    raise ScriptError(message_of(error), condition=INVALID, at=at) from error
        for target, flows in self.flows.items():
            if target not in self.outputs:
                raise _invalid(
                    f"flow {flows[0].name} writes into {target}, which isn't defined",
                    flows[0].source_code_location,
                )
            if len(flows) > 1 and any(isinstance(flow, ChangesFlow) for flow in flows):
                raise _invalid(
                    f"{target} has a flow of AUTO CDC and other flows; it must be its only one",
                    flows[1].source_code_location,
                )
        if not self.outputs:  # a run would drop all that earlier ones have made
            raise ScriptError(
                f"the files of the project define nothing: {', '.join(self.spec.globs) or 'libraries is empty'}",
                condition=INVALID,
                hint="name the files with definitions in libraries of the spec file; "
                "to drop all datasets, remove the storage",
                at=str(self.spec.path),
            )

    def register_output(self, output: Output) -> None:
        """Add a dataset or a sink."""
        name = self.plain(output.name)
        if name in self.outputs:
            where = shown(self.outputs[name].source_code_location)
            raise _invalid(
                f"two datasets are named {name}: the other is at {where}",
                output.source_code_location,
            )
        self.outputs[name] = output

    def register_flow(self, flow: Flow) -> None:
        """Add a flow."""
        flows = self.flows.setdefault(self.plain(flow.target), [])
        if any(one.name == flow.name for one in flows):
            raise _invalid(f"two flows are named {flow.name}", flow.source_code_location)
        flows.append(flow)

    def register_auto_cdc_flow(self, flow: AutoCdcFlow) -> None:
        """Add a flow of change records."""
        changes = Changes(
            flow.source,
            listed("keys", flow.keys),
            flow.sequence_by,
            flow.apply_as_deletes,
            listed("column_list", flow.column_list or ()),
            listed("except_column_list", flow.except_column_list or ()),
            scd_type(flow.stored_as_scd_type),
            bool(flow.track_history_column_list or flow.track_history_except_column_list),
        )
        self._register_changes(
            flow.name or flow.target, flow.target, changes, flow.source_code_location
        )

    def _register_changes(
        self, name: str, target: str, changes: Changes, at: SourceCodeLocation
    ) -> None:
        self.register_flow(changes_flow(self.spark, name, self.plain(target), changes, at))

    @contextmanager
    def _auto_cdc(self) -> Iterator[None]:
        """Replace PySpark's `create_auto_cdc_flow` during the import, because it needs the packages of Spark Connect."""
        original = getattr(pipelines, _AUTO_CDC, None)
        setattr(pipelines, _AUTO_CDC, recorder(self._register_changes))
        try:
            yield
        finally:
            if original is not None:
                setattr(pipelines, _AUTO_CDC, original)

    def register_sql(self, sql_text: str, file_path: Path) -> None:
        """Add what the statements of a SQL file define."""
        catalyst = Catalyst(self.spark)
        for statement in split(sql_text):
            at = SourceCodeLocation(str(file_path), statement.line)
            text = statement.rest("a statement")
            with query_errors(text, file=shown(at)):
                found = definition(catalyst, text)
            if found is not None:
                self._register(catalyst, text, found, at)
            elif not self._changes_nothing(catalyst, text):
                raise ScriptError(
                    f"the statement {' '.join(text.split()[:3])} is not supported in a project",
                    condition=UNSUPPORTED,
                    hint="projects have CREATE MATERIALIZED VIEW, CREATE STREAMING TABLE, CREATE TEMPORARY "
                    "VIEW, CREATE FLOW ... AS INSERT INTO ... BY NAME, and AS AUTO CDC INTO"
                    if setting(catalyst, text) is None
                    else "settings hold for all datasets: write it under configuration of the spec file; a SET of the "
                    "same value may stay",
                    at=shown(at),
                )

    def _changes_nothing(self, catalyst: Catalyst, statement: str) -> bool:
        """Return whether a statement sets what is set already, or uses the project's catalog and database."""
        if (pair := setting(catalyst, statement)) is not None:
            name, value = pair
            return self.spark.conf.get(name, None) == value
        used = {name.lower() for name in used_names(catalyst, statement)}
        return bool(used) and used <= {*_DEFAULTS, *self.spec.qualifiers}

    def _register(
        self, catalyst: Catalyst, statement: str, found: Definition, at: SourceCodeLocation
    ) -> None:
        """Register a definition of SQL as Python's decorators do."""
        if found.kind == MATERIALIZED:
            self.register_output(MaterializedView(found.name, None, at, {}, None, None, None, None))
        elif found.kind == STREAMING:
            self.register_output(StreamingTable(found.name, None, at, {}, None, None, None, None))
        elif found.kind not in (FLOW, CHANGES):
            self.register_output(TemporaryView(found.name, None, at))
        if found.changes is not None:
            self._register_changes(found.name, found.target, found.changes, at)
        if found.query is not None:
            call = partial(self._query, catalyst, statement)
            self.register_flow(Flow(found.name, found.target or found.name, {}, at, call))

    def _query(self, catalyst: Catalyst, statement: str) -> DataFrame:
        """Return the DataFrame of a statement's query, parsed anew: Spark doesn't resolve a plan again that it couldn't."""
        found = definition(catalyst, statement)
        assert found is not None
        assert found.query is not None
        return query_frame(catalyst, found.query, self.spark.readStream.table)

    def plain(self, name: str) -> str:
        """Return a name without backticks and without the project's catalog and database."""
        *qualifiers, last = name.replace("`", "").lower().split(".")
        return last if set(qualifiers) <= set(self.spec.qualifiers) else name.lower()

    def datasets(self) -> Iterator[str]:
        """Yield the names of all outputs that aren't sinks: tables and views."""
        return (name for name, output in self.outputs.items() if not isinstance(output, Sink))


def shown(at: SourceCodeLocation) -> str:
    """Return `file:line`, for messages."""
    return f"{os.path.relpath(at.filename)}:{at.line_number}"


def _invalid(message: str, at: SourceCodeLocation) -> ScriptError:
    return ScriptError(message, condition=INVALID, at=shown(at))
