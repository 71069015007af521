-- One row a session and rank: its first and last step and when they began.
-- A rank that left no step row but whose state slot says where it was counts with that.
WITH pieces AS (
    SELECT session, rank, seq, start_ns, start_ns AS last_start_ns, step - n_steps AS before_step,
           step, n_steps, n_steps AS steps, 1 AS step_rows
    FROM step_rows
    UNION ALL
    SELECT session, rank, seq, start_ns, last_start_ns, before_step, step, 1, steps, steps
    FROM stretch_rows
)
SELECT session, rank, min(start_ns) AS first_start_ns, max(last_start_ns) AS last_start_ns,
       arg_min(before_step, (start_ns, seq)) AS before_first,
       arg_max(step, (last_start_ns, seq)) AS last_step, max(n_steps) AS log_interval,
       sum(steps)::BIGINT AS steps, sum(step_rows)::BIGINT AS step_rows,
       sum(steps)::BIGINT > max(step) - min(before_step) AS repeats
FROM pieces GROUP BY session, rank
UNION ALL
SELECT m.session, m.rank, NULL, NULL, NULL,
       m.phase_step - (CASE WHEN m.phase = 'step' THEN 1 ELSE 0 END), 1, 0, 0, false
FROM members m
WHERE m.phase_step IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM pieces r WHERE r.session = m.session AND r.rank = m.rank)
