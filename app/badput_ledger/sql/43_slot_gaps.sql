-- Allocated time of each place outside sessions, and inside sessions that left it empty.
-- What a person said of a gap, such as a planned stop, goes before what is guessed.
WITH windows AS (
    SELECT session, ord, start_ns, end_ns,
           lag(end_ns, 1, 0) OVER (ORDER BY ord) AS before_ns, max(ord) OVER () AS last
    FROM sessions
),
holes AS (
    SELECT session, before_ns AS start_ns, start_ns AS stop_ns,
           CASE WHEN ord = 1 THEN 'first' ELSE 'between' END AS place
    FROM windows
    UNION ALL
    SELECT session, end_ns, 9223372036854775807, 'last' FROM windows WHERE ord = last
    UNION ALL
    SELECT NULL, 0, 9223372036854775807, 'last' WHERE NOT EXISTS (FROM sessions)
),
cut AS (
    SELECT a.slot, h.session, h.place, a.held, a.billed, a.said, a.spare,
           greatest(a.start_ns, h.start_ns) AS start_ns, least(a.end_ns, h.stop_ns) AS stop_ns
    FROM allocations a JOIN holes h ON a.start_ns < h.stop_ns AND a.end_ns > h.start_ns
)
SELECT slot, session, held, billed, start_ns, stop_ns,
       CASE WHEN spare AND held = 'yes' AND coalesce(said, '') <> 'A.stop' THEN 'A.spare' WHEN said IS NOT NULL THEN said
            WHEN place = 'last' THEN (CASE held WHEN 'yes' THEN 'B.teardown' ELSE 'A.requeue' END)
            WHEN held = 'yes' THEN 'C.launch'
            WHEN place = 'first' THEN 'A.queue' ELSE 'A.requeue' END AS leaf
FROM cut
UNION ALL
SELECT a.slot, p.session, a.held, a.billed, greatest(a.start_ns, s.start_ns),
       least(a.end_ns, s.end_ns), CASE WHEN a.spare THEN 'A.spare' ELSE 'A.capacity' END
FROM slots p JOIN sessions s USING (session) JOIN allocations a
  ON a.slot = p.slot AND a.start_ns < s.end_ns AND a.end_ns > s.start_ns
WHERE p.rank IS NULL
