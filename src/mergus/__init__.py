"""Mergus: every table of a DuckLake is an Apache Iceberg table too, live and both ways."""

from importlib.metadata import version

__version__ = version("mergus")
