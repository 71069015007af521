-- The time line with equal neighbours merged.
-- rows: asked once
WITH marked AS (
    SELECT *, CASE WHEN lag(leaf) OVER w = leaf AND lag(stop_ns) OVER w = start_ns
                   AND lag(session) OVER w IS NOT DISTINCT FROM session THEN 0 ELSE 1 END AS fresh
    FROM level1 WINDOW w AS (PARTITION BY rank ORDER BY start_ns, stop_ns)
),
runs AS (
    SELECT *, sum(fresh) OVER (PARTITION BY rank ORDER BY start_ns, stop_ns
                               ROWS UNBOUNDED PRECEDING) AS run
    FROM marked
)
SELECT any_value(session) AS session, rank, any_value(leaf) AS leaf,
       min(start_ns) AS start_ns, max(stop_ns) AS end_ns
FROM runs GROUP BY rank, run ORDER BY rank, start_ns
