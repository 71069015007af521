-- The last session's steps after the last durable checkpoint, if the run broke off.
-- known: the run is over; otherwise the steps stay kept and only the bounds say so.
WITH last AS (SELECT l.session, r.completed_upto FROM lineage l JOIN resumes r USING (session)
              WHERE l.is_last),
durable AS (
    SELECT max(v.step) AS step FROM saves v JOIN lineage l USING (session)
    WHERE v.durable AND l.on_path AND v.step <= coalesce(l.cut, v.step)
)
SELECT t.session, d.step AS durable_step, z.run_over AS known
FROM last t, durable d, (SELECT * FROM sessions ORDER BY ord DESC LIMIT 1) z
WHERE d.step IS NOT NULL AND d.step < t.completed_upto AND NOT z.completed
