-- Nanoseconds by session, rank and leaf: steps divided, and every other segment. Where `ideal_time` knows the FLOPs of a
-- session, compute in kept steps is H as far as they take at the peak rate, and G.recompute and G.kernel above.
WITH parts AS (
    SELECT session, rank, leaf, ns FROM step_sums
    UNPIVOT (ns FOR leaf IN ("C.warmup", "E.save", "E.snapshot", "E.interference", "E.eval", "E.overhead", "G.data",
             "G.bubble", "G.straggler", "G.comm", "G.host", "G.throttle", "U.unaccounted", "F.padding"))
    UNION ALL
    SELECT session, rank, CASE fate WHEN 'kept' THEN 'H.productive' ELSE fate END, rest_ns FROM step_sums
    UNION ALL
    SELECT session, rank, leaf, (stop_ns - start_ns)::HUGEINT FROM rank_segments
),
summed AS (
    SELECT session, rank, leaf, sum(ns)::HUGEINT AS ns FROM parts GROUP BY session, rank, leaf
),
rated AS (
    SELECT session, rank, s.ns, coalesce(s.ns * i.again_part // i.again_of, 0) AS again_ns,
           s.ns * i.ideal_ns // (sum(s.ns * m.weight) OVER (PARTITION BY session))::HUGEINT AS ideal_ns
    FROM summed s JOIN members m USING (session, rank) JOIN ideal_time i USING (session)
    WHERE s.leaf = 'H.productive' AND s.ns > 0
),
split AS (
    FROM summed s ANTI JOIN rated r ON r.session = s.session AND r.rank = s.rank AND s.leaf = 'H.productive'
    UNION ALL SELECT session, rank, 'H.productive', ideal_ns FROM rated
    UNION ALL SELECT session, rank, 'G.recompute', again_ns FROM rated
    UNION ALL SELECT session, rank, 'G.kernel', ns - ideal_ns - again_ns FROM rated
)
SELECT session, rank, leaf, ns::DECIMAL(38, 0) AS ns FROM split WHERE ns <> 0
