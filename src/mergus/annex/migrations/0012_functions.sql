-- Two of these run as their owner. A writer of the lake may have tables of its own, and Postgres lets everybody hang every
-- function on a trigger there: these are for the triggers of `mergus init` alone, which fire whoever writes.
REVOKE ALL ON FUNCTION notify_snapshot(), raise_epoch(), keep_shared_files() FROM PUBLIC;
