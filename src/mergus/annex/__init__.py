"""Schema `mergus`: what DuckLake has no room for, changed in the same transaction as the rows it describes.

Everything here hangs on DuckLake's ids. Ids are never used twice, so a row whose object a DuckDB session has
dropped is never mistaken for another's.
"""
