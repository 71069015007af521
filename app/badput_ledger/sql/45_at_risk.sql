-- What the steps after the last durable checkpoint hold, while the end of the run is unknown.
WITH risky AS (
    SELECT d.*, m.weight FROM divided d JOIN members m USING (session, rank)
    WHERE d.at_risk_after IS NOT NULL AND d.step > d.at_risk_after AND d.fate NOT LIKE 'D.%'
),
parts AS (
    SELECT leaf, ns::HUGEINT * weight AS ns FROM risky
    UNPIVOT (ns FOR leaf IN ("E.save", "E.snapshot", "E.interference", "E.eval", "E.overhead", "G.data", "G.bubble",
             "G.straggler", "G.comm", "G.host", "G.throttle", "U.unaccounted", "F.padding"))
    UNION ALL
    SELECT CASE fate WHEN 'kept' THEN 'H.productive' ELSE fate END,
           (rest_ns - "F.padding")::HUGEINT * weight FROM risky
    UNION ALL
    SELECT 'D.tail', (time_ns - "C.warmup")::HUGEINT * weight FROM risky
    UNION ALL
    SELECT leaf, ns::HUGEINT * weight FROM (
        SELECT leaf, ns, t.session, t.rank FROM stretch_leaves t JOIN stretch_fates f USING (process_id, seq)
        WHERE f.before_step >= f.at_risk_after AND f.fate NOT LIKE 'D.%'
        UNION ALL
        SELECT 'D.tail', time_ns, session, rank FROM stretch_fates
        WHERE before_step >= at_risk_after AND fate NOT LIKE 'D.%'
    ) JOIN members USING (session, rank)
)
SELECT leaf, sum(ns)::DECIMAL(38, 0) AS ns FROM parts GROUP BY leaf HAVING sum(ns) <> 0
