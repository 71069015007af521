-- Rollbacks inside a session: after time_ns, steps above to_step were given up.
-- Declared by an event, a person or a load in mid-session, or seen as a step number that came again.
WITH suspects AS (SELECT session, rank FROM rank_steps WHERE repeats),
pieces AS (
    SELECT session, rank, seq, start_ns, step - n_steps AS before_step, step FROM step_rows
    UNION ALL
    SELECT session, rank, seq, start_ns, before_step, step FROM stretch_rows
),
back AS (
    SELECT r.session, r.rank, r.start_ns, r.before_step AS to_step,
           lag(r.step) OVER (PARTITION BY r.session, r.rank ORDER BY r.start_ns, r.seq) AS before
    FROM pieces r SEMI JOIN suspects USING (session, rank)
),
said AS (
    SELECT m.session, e.rank, e.time_ns,
           TRY_CAST(json_extract_string(CASE WHEN json_valid(e.attrs) THEN e.attrs END, '$.to_step')
                    AS BIGINT) AS to_step
    FROM events e JOIN members m USING (process_id) WHERE e.kind = 'rewind'
    UNION ALL
    SELECT m.session, m.rank, c.start_ns, c.step
    FROM checkpoints c JOIN members m USING (process_id)
    JOIN rank_steps k ON k.session = m.session AND k.rank = m.rank
    WHERE c.op = 'load' AND coalesce(c.ok, true) AND c.step IS NOT NULL
      AND c.start_ns > k.first_start_ns
    UNION ALL
    SELECT z.session, m.rank, a.start_ns, a.step
    FROM annotations a JOIN sessions z ON a.start_ns BETWEEN z.start_ns AND z.end_ns
    JOIN members m ON m.session = z.session WHERE a.kind = 'rewind'
),
-- A rank that says nothing itself goes by what another rank of its session said.
everyone AS (
    SELECT m.session, m.rank, s.time_ns, s.to_step, true AS declared
    FROM said s JOIN members m ON m.session = s.session
    WHERE s.to_step IS NOT NULL
      AND (s.rank = m.rank OR NOT EXISTS (
          SELECT 1 FROM said o
          WHERE o.session = m.session AND o.rank = m.rank AND o.to_step = s.to_step))
)
SELECT session, rank, to_step, max(time_ns) AS time_ns, true AS declared
FROM everyone GROUP BY session, rank, to_step
UNION ALL
SELECT session, rank, to_step, start_ns, false FROM back WHERE to_step < before
