-- Spans outside steps with their leaf and end. A span whose end was never seen lasts to the
-- rank's next fact. Start-up, the span under way at death and hangs are made into rows here too.
WITH named AS (
    SELECT m.session, m.rank, p.process_id, p.seq, p.name, p.start_ns, p.dur_ns,
           k.first_start_ns, coalesce(l.leaf, 'U.unaccounted') AS leaf, l.leaf IS NOT NULL AS known,
           least(m.death_ns, coalesce(z.fail_ns, m.death_ns)) AS last_ns, z.fail_ns,
           min(p.start_ns) OVER (PARTITION BY m.session, m.rank ORDER BY p.start_ns
                                 RANGE BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS next_span_ns
    FROM spans p JOIN members m USING (process_id) JOIN sessions z ON z.session = m.session
    LEFT JOIN span_leaves l ON l.name = p.name
    LEFT JOIN rank_steps k ON k.session = m.session AND k.rank = m.rank
    WHERE NOT p.in_step
),
-- The first step that starts after each span does.
following AS (
    SELECT n.process_id, n.seq, s.start_ns AS next_step_ns
    FROM named n ASOF JOIN step_rows s
      ON n.session = s.session AND n.rank = s.rank AND s.start_ns >= n.start_ns
),
ended AS (
    SELECT n.*, f.next_step_ns, CASE WHEN n.dur_ns IS NOT NULL THEN n.start_ns + greatest(n.dur_ns, 0)
           ELSE greatest(n.start_ns, least(
               coalesce(f.next_step_ns, n.last_ns),
               coalesce(n.next_span_ns, n.last_ns),
               n.last_ns)) END AS stop_ns
    FROM named n LEFT JOIN following f USING (process_id, seq)
)
SELECT session, rank, process_id, seq, name, start_ns,
       -- a step that broke off is teardown from the first sign of the failure on
       CASE WHEN leaf = 'D.partial' AND fail_ns > start_ns THEN least(stop_ns, fail_ns)
            WHEN leaf = 'D.partial' AND fail_ns <= start_ns THEN start_ns ELSE stop_ns END AS stop_ns,
       CASE WHEN (leaf = 'U.unaccounted' OR leaf = 'G.data')
                 AND (first_start_ns IS NULL OR start_ns < first_start_ns)
            THEN (CASE leaf WHEN 'G.data' THEN 'C.data' ELSE 'C.model' END)
            ELSE leaf END AS leaf,
       known, dur_ns IS NULL AS open_end, next_step_ns
FROM ended
-- A user's own span around steps says nothing about the time between them.
WHERE known OR next_step_ns IS NULL OR next_step_ns >= stop_ns
UNION ALL
SELECT m.session, m.rank, m.process_id, -1, 'launch', s.start_ns, m.init_ns, 'C.launch',
       true, false, NULL
FROM members m JOIN sessions s USING (session)
UNION ALL
SELECT m.session, m.rank, m.process_id, -2, m.phase, m.phase_since_ns,
       least(m.death_ns, coalesce(s.fail_ns, m.death_ns)), l.leaf, true, false, NULL
FROM members m JOIN sessions s USING (session) JOIN span_leaves l ON l.name = m.phase
WHERE m.phase_since_ns IS NOT NULL AND NOT s.completed
UNION ALL
-- A rank that stood still did so in whatever it was in: the innermost wins.
SELECT session, rank, process_id, seq, 'hang', start_ns, stop_ns, 'B.hang', true, false, NULL
FROM hangs
