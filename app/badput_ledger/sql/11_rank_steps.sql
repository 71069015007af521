-- One row a session and rank: its first and last step and when they began.
-- A rank that left no step row but whose state slot says where it was counts with that.
SELECT session, rank, min(start_ns) AS first_start_ns, max(start_ns) AS last_start_ns,
       arg_min(step - n_steps, (start_ns, seq)) AS before_first,
       arg_max(step, (start_ns, seq)) AS last_step, max(n_steps) AS log_interval,
       sum(n_steps)::BIGINT AS steps, count(*) AS step_rows,
       sum(n_steps)::BIGINT > max(step) - min(step - n_steps) AS repeats
FROM step_rows GROUP BY session, rank
UNION ALL
SELECT m.session, m.rank, NULL, NULL, NULL,
       m.phase_step - (CASE WHEN m.phase = 'step' THEN 1 ELSE 0 END), 1, 0, 0, false
FROM members m
WHERE m.phase_step IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM step_rows r WHERE r.session = m.session AND r.rank = m.rank)
