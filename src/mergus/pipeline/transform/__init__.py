"""Medallion pipelines from a file.

definition → graph → state → history → plan → (changes, inputs, expectations, write) → run → job.

A step makes one table of others. What it has read is written with what it writes, in the snapshot of its output: a run
that is killed either happened or did not, and the next one goes on from what happened.
"""
