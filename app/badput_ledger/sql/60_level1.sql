-- Level 1 as a time line: one row a piece, every instant of every rank's session once.
-- rows: asked once
WITH steps1 AS (
    SELECT process_id, seq, CASE min(fate) WHEN 'kept' THEN 'H.productive'
           ELSE min(fate) FILTER (WHERE fate <> 'kept') END AS leaf
    FROM fates GROUP BY process_id, seq
    UNION ALL
    SELECT process_id, seq, CASE fate WHEN 'kept' THEN 'H.productive' ELSE fate END FROM stretch_fates
)
SELECT l.session, l.rank, s.leaf,
       CASE WHEN l.before_ns >= k.first_start_ns THEN l.before_ns ELSE l.start_ns END AS start_ns, l.stop_ns
FROM line l JOIN rank_steps k USING (session, rank) JOIN steps1 s USING (process_id, seq)
WHERE l.is_step
UNION ALL
SELECT session, rank, 'G.data', start_ns, start_ns + data_ns FROM loop_gaps WHERE data_ns > 0
UNION ALL
SELECT session, rank, leaf, start_ns, stop_ns FROM rank_segments WHERE stop_ns > start_ns
UNION ALL
SELECT g.session, p.slot, g.leaf, g.start_ns, g.stop_ns
FROM slot_gaps g JOIN slots p ON p.slot = g.slot AND p.session = g.session
WHERE g.stop_ns > g.start_ns
  AND (p.rank IS NULL OR p.rank = p.slot)
