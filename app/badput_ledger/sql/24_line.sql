-- The time line of each rank without overlaps: every piece and the gap before it.
-- rows: many
SELECT session, rank, is_step, process_id, seq, leaf, start_ns, stop_ns, before_ns
FROM ordered WHERE alone
UNION ALL
SELECT session, rank, is_step, process_id, seq, leaf, start_ns, stop_ns, before_ns FROM contested
