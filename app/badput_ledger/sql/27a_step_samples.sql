-- Rows from which the usual step is told, without what E and G took, by single steps. sampled:
-- one of about 512 steps of its session, picked by number: every one of a session up to that
-- length. The others are here for the first steps alone.
WITH sizes AS (
    SELECT session, 65536 // greatest(1, (max(step_rows) + 511) // 512) AS below
    FROM rank_steps GROUP BY session
),
rows AS (
    SELECT session, stage, step, n_steps, plain_ns // n_steps AS plain_ns, tokens // n_steps AS tokens,
           NOT (eval_ns > 0 OR save_ns > 0 OR snapshot_ns > 0 OR compile_ns > 0) AS usable
    FROM step_time
    UNION ALL
    SELECT m.session, m.stage, q.step, 1, q.plain_ns, q.tokens,
           NOT coalesce(q.eval_ns > 0 OR q.save_ns > 0 OR q.snapshot_ns > 0, false)
    FROM quiet_samples q JOIN members m USING (process_id) ANTI JOIN step_rows USING (process_id, seq)
)
SELECT r.*, ((r.step * 40503) & 65535) < s.below AS sampled FROM rows r JOIN sizes s USING (session)
