"""Rows → objects: what to write, what to reuse, writing it."""
