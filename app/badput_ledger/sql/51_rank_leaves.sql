-- Nanoseconds by session, rank and leaf: steps divided, and every other segment.
WITH parts AS (
    SELECT session, rank, leaf, ns FROM step_sums
    UNPIVOT (ns FOR leaf IN ("C.warmup", "E.save", "E.snapshot", "E.interference", "E.eval", "E.overhead", "G.data",
             "G.bubble", "G.straggler", "G.comm", "G.host", "G.throttle", "U.unaccounted", "F.padding"))
    UNION ALL
    SELECT session, rank, CASE fate WHEN 'kept' THEN 'H.productive' ELSE fate END, rest_ns FROM step_sums
    UNION ALL
    SELECT session, rank, leaf, (stop_ns - start_ns)::HUGEINT FROM rank_segments
)
SELECT session, rank, leaf, sum(ns)::DECIMAL(38, 0) AS ns FROM parts
GROUP BY session, rank, leaf HAVING sum(ns) <> 0
