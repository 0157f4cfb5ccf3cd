"""A lake at work, in one command: DuckDB writes orders, Spark makes tables of them, and both see the same.

orders (what DuckDB writes) → story (what happens, and in which order) → report (what happened).
"""
