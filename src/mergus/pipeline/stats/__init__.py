"""Statistics of columns, for optimisers and for people: how many distinct values, how many nulls, from where to where.

columns (which ones) → measure (one scan of Spark's; histogram, texts) → puffin (one file for a snapshot) → compute.
A figure that is not known is absent. A zero is a zero that was counted.
"""
