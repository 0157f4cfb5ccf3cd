"""`mergus pipeline ingest`: files into a bronze table, each of them once.

files (what is there) → decision (how it is read, what the table becomes) → ledger (written down: a batch) → finish
(bad records, then the data, then the note that it is done). Every arrow is a commit of its own, and each commit carries
`mergus.once`: a run that is killed anywhere, or runs beside another one, is simply run again.
"""
