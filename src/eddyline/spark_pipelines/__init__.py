"""Runs projects of Spark Declarative Pipelines, unchanged, on an engine."""
