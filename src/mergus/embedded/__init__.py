"""A Postgres and an S3 store of our own, from wheels: what `mergus dev` and the tests stand on."""
