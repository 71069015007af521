-- The time line in order: the gap before each interval, and islands of overlapping ones.
-- rows: many
WITH reach AS (
    SELECT *, coalesce(max(stop_ns) OVER w, -1) AS reached_ns,
           lead(start_ns) OVER (PARTITION BY session, rank ORDER BY start_ns, stop_ns, seq) AS next_ns
    FROM intervals
    WINDOW w AS (PARTITION BY session, rank ORDER BY start_ns, stop_ns, seq
                 ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
)
SELECT r.* EXCLUDE (reached_ns, next_ns),
       greatest(r.reached_ns, s.start_ns) AS before_ns,
       r.start_ns >= r.reached_ns AS opens,
       r.start_ns >= r.reached_ns AND coalesce(r.next_ns >= r.stop_ns, true) AS alone
FROM reach r JOIN sessions s USING (session)
