"""Makes events of OpenLineage from entries of the catalog."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from openlineage.client import event_v2 as ol
from openlineage.client.facet_v2 import (
    column_lineage_dataset,
    dataset_type_dataset,
    dataset_version_dataset,
    error_message_run,
    job_type_job,
    lifecycle_state_change_dataset,
    output_statistics_output_dataset,
    processing_engine_run,
    schema_dataset,
    sql_job,
)
from openlineage.client.uuid import generate_new_uuid
from pyspark.sql.types import StructField

from eddyline.catalog.catalog import Catalog
from eddyline.catalog.entries import SINK, VIEW, Entry
from eddyline.errors import installed_version
from eddyline.plan.lineage import DIRECT, IDENTITY, Lineage
from eddyline.telemetry.datasets import Named, namespace_of, nested, outside

INTEGRATION = "EDDYLINE"

Facets = dict[str, Any]


class Events:
    """Makes the events of one storage.

    Args:
        namespace: of the jobs.
        storage: its folder. The last part begins the names of jobs.
    """

    def __init__(self, namespace: str, storage: str) -> None:
        self._namespace = namespace
        self._storage = storage
        self._short = storage.rstrip("/").rpartition("/")[2]
        self._version = installed_version("eddyline") or "0"
        self._producer = f"urn:eddyline:{self._version}"

    def new_run(self) -> str:
        """Return the id of a run."""
        return str(generate_new_uuid())

    def of(
        self,
        state: str,
        run: str,
        at: datetime,
        entry: Entry,
        catalog: Catalog,
        epoch: int,
        lineage: Lineage | None,
        *,
        rows: int = 0,
        condition: str = "",
        dropped: bool = False,
    ) -> ol.RunEvent:
        """Return an event of a view, a sink or a stream.

        Args:
            lineage: of a view; None if it isn't known.
            rows: changes written since the last event.
            condition: of the error with which the run has failed.
            dropped: whether the definition is gone.
        """
        make = self._made
        facets: Facets = {}
        facets["processing_engine"] = make(
            processing_engine_run.ProcessingEngineRunFacet,
            version=self._version,
            name="eddyline",
            openlineageAdapterVersion=self._version,
        )
        if condition:
            facets["errorMessage"] = make(
                error_message_run.ErrorMessageRunFacet, message=condition, programmingLanguage="SQL"
            )
        about: Facets = {}
        if dropped and entry.kind == VIEW:
            change = lifecycle_state_change_dataset
            about["lifecycleStateChange"] = make(
                change.LifecycleStateChangeDatasetFacet,
                lifecycleStateChange=change.LifecycleStateChange.DROP,
            )
        inputs, outputs = self._datasets(entry, catalog, epoch, lineage, about)
        statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet
        for one in outputs if rows else ():
            one.outputFacets = {"outputStatistics": make(statistics, rowCount=rows)}
        return ol.RunEvent(
            eventType=ol.RunState[state],
            eventTime=at.isoformat(),
            run=ol.Run(runId=run, facets=facets),
            job=self._job(entry),
            inputs=inputs,
            outputs=outputs,
            producer=self._producer,
        )

    def _job(self, entry: Entry) -> ol.Job:
        facets: Facets = {
            "jobType": self._made(
                job_type_job.JobTypeJobFacet,
                processingType="STREAMING",
                integration=INTEGRATION,
                jobType=entry.kind.upper(),
            )
        }
        if entry.kind == VIEW and not entry.of_frame:
            facets["sql"] = self._made(sql_job.SQLJobFacet, query=entry.query, dialect="spark")
        return ol.Job(self._namespace, f"{self._short}.{entry.kind}.{entry.name}", facets=facets)

    def _datasets(
        self,
        entry: Entry,
        catalog: Catalog,
        epoch: int,
        lineage: Lineage | None,
        about: Facets,
    ) -> tuple[list[ol.InputDataset], list[ol.OutputDataset]]:
        if entry.kind == VIEW:
            known = [one for name in entry.upstream if (one := catalog.find(name)) is not None]
            version, kind = dataset_version_dataset, dataset_type_dataset
            facets: Facets = {
                **about,
                "version": self._made(
                    version.DatasetVersionDatasetFacet, datasetVersion=str(epoch)
                ),
                "datasetType": self._made(
                    kind.DatasetTypeDatasetFacet, datasetType="VIEW", subType="MATERIALIZED"
                ),
            }
            if lineage is not None:
                facets["columnLineage"] = self._column_lineage(lineage)
            output = self._output(self._named(entry.name), entry.columns.fields, facets)
            return [self._input(one) for one in known], [output]
        targets = outside(entry.format, entry.options)
        if entry.kind == SINK:
            view = catalog.find(entry.upstream[0])
            if view is None:
                return [], []
            copied: Facets = {"columnLineage": self._copied(view)}
            columns = view.columns.fields
            return [self._input(view)], [self._output(one, columns, copied) for one in targets]
        read = [ol.InputDataset(*target) for target in targets]
        return read, [self._output(self._named(entry.name), entry.columns.fields, {})]

    def _named(self, relation: str) -> Named:
        return namespace_of(self._storage), relation

    def _input(self, entry: Entry) -> ol.InputDataset:
        facets: Facets = {"schema": self._schema(entry.columns.fields)}
        return ol.InputDataset(*self._named(entry.name), facets=facets)

    def _output(
        self, named: Named, columns: Sequence[StructField], facets: Facets
    ) -> ol.OutputDataset:
        return ol.OutputDataset(*named, facets={"schema": self._schema(columns), **facets})

    def _schema(self, columns: Sequence[StructField]) -> schema_dataset.SchemaDatasetFacet:
        facet = schema_dataset.SchemaDatasetFacet
        return facet(fields=_fields(columns), producer=self._producer)

    def _column_lineage(self, lineage: Lineage) -> column_lineage_dataset.ColumnLineageDatasetFacet:
        facet = column_lineage_dataset
        fields = {
            column: facet.Fields([self._field(origin, ways) for origin, ways in origins.items()])
            for column, origins in lineage.columns.items()
        }
        rows = [self._field(origin, ways) for origin, ways in lineage.rows.items()]
        return facet.ColumnLineageDatasetFacet(fields, rows, producer=self._producer)

    def _copied(self, view: Entry) -> column_lineage_dataset.ColumnLineageDatasetFacet:
        """Return the lineage of a sink, whose columns are copies of those of its view."""
        facet = column_lineage_dataset
        fields = {
            name: facet.Fields([self._field((view.name, name), (IDENTITY,))])
            for name in view.columns.names
        }
        return facet.ColumnLineageDatasetFacet(fields, producer=self._producer)

    def _field(
        self, origin: tuple[str, str], ways: Iterable[str]
    ) -> column_lineage_dataset.InputField:
        relation, column = origin
        transformations = [
            column_lineage_dataset.Transformation(
                "DIRECT" if way in DIRECT else "INDIRECT", way, "", masking=False
            )
            for way in sorted(ways)
        ]
        return column_lineage_dataset.InputField(
            *self._named(relation), field=column, transformations=transformations
        )

    def _made(self, facet: Any, **values: Any) -> Any:
        return facet(**values, producer=self._producer)


def _fields(columns: Sequence[StructField]) -> list[schema_dataset.SchemaDatasetFacetFields]:
    return [
        schema_dataset.SchemaDatasetFacetFields(
            name=one.name, type=one.dataType.simpleString(), fields=_fields(nested(one.dataType))
        )
        for one in columns
    ]
