-- Where each session began: the checkpoint that it loaded, else the step before its first.
-- A loaded path that this run never wrote says nothing about this run's step numbers.
WITH loads AS (
    SELECT m.session, rtrim(c.path, '/') AS path, c.step
    FROM checkpoints c JOIN members m USING (process_id)
    LEFT JOIN rank_steps k ON k.session = m.session AND k.rank = m.rank
    WHERE c.op = 'load' AND coalesce(c.ok, true)
      AND (k.first_start_ns IS NULL OR c.start_ns <= k.first_start_ns)
),
traced AS (
    SELECT l.session, l.step, l.path,
           (SELECT arg_max(struct_pack(session := v.session, step := v.step, ord := sv.ord),
                           (v.start_ns, sv.ord, v.step))
            FROM saves v JOIN sessions sv ON sv.session = v.session
            WHERE l.path IS NOT NULL AND sv.ord < s.ord
              AND (list_contains(v.paths, l.path) OR list_contains(v.final_paths, l.path)
                   -- last.new, where the suffix was put in the place of the other: last.pt
                   OR (list_contains(v.final_paths, regexp_replace(l.path, '[.][^./]+$', ''))
                       AND NOT list_contains(v.paths, regexp_replace(l.path, '[.][^./]+$', '')))
              )) AS origin
    FROM loads l JOIN sessions s ON s.session = l.session
),
loaded AS (
    -- ranks that loaded from different sessions began at the lowest of the steps
    SELECT session, arg_min(origin.session, (coalesce(step, origin.step), -origin.ord)) AS writer,
           min(coalesce(step, origin.step)) FILTER (WHERE origin IS NOT NULL OR path IS NULL) AS step,
           count(*) AS loads, bool_or(path IS NOT NULL AND origin IS NULL) AS outside
    FROM traced GROUP BY session
),
-- A rollback with no step after it takes the last step back.
undone AS (
    SELECT k.session, k.rank, min(w.to_step) AS to_step
    FROM rank_steps k JOIN rewinds w USING (session, rank) WHERE w.time_ns > k.last_start_ns
    GROUP BY k.session, k.rank
),
stepped AS (
    SELECT k.session, min(k.before_first) AS before_first,
           min(least(k.last_step, coalesce(u.to_step, k.last_step))) AS completed_upto
    FROM rank_steps k LEFT JOIN undone u USING (session, rank) GROUP BY k.session
)
SELECT s.session, s.ord, s.job_id, s.attempt,
       t.before_first + 1 AS first_step,
       CASE WHEN t.completed_upto > t.before_first THEN t.completed_upto END AS completed_upto,
       coalesce(l.step, t.before_first) AS resumed_from,
       l.writer, coalesce(l.loads, 0) AS loads, coalesce(l.outside, false) AS outside
FROM sessions s LEFT JOIN stepped t USING (session) LEFT JOIN loaded l USING (session)
