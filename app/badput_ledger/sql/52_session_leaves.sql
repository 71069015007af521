-- Nanoseconds by session and leaf over all places; the gap before a session belongs to it.
WITH parts AS (
    SELECT l.session, l.leaf, l.ns * m.weight AS ns, l.ns * m.weight AS billed_ns
    FROM rank_leaves l JOIN members m USING (session, rank)
    UNION ALL
    SELECT session, leaf, (stop_ns - start_ns)::DECIMAL(38, 0),
           CASE WHEN billed THEN stop_ns - start_ns ELSE 0 END::DECIMAL(38, 0)
    FROM slot_gaps
)
SELECT session, leaf, sum(ns)::DECIMAL(38, 0) AS ns, sum(billed_ns)::DECIMAL(38, 0) AS billed_ns
FROM parts GROUP BY session, leaf
