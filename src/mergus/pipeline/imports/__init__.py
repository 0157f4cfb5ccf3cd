"""`mergus pipeline import`: tables of another catalog, or of plain directories, become tables of the lake.

connector.py says what a source is; iceberg.py, delta.py and parquet.py are the sources that there are, and sources.py
knows them by name. standing.py judges what the lake has of a table already, take.py brings one in, and importing.py
does it for many at once and tells what became of each.
"""
