-- The same for each pipeline stage: its usual plain duration, from its own ranks.
-- stage -1: the session has no known stages.
WITH obs AS (
    SELECT t.session, u.world_size, u.batch, coalesce(t.stage, -1) AS stage, t.step,
           max(t.n_steps) AS n_steps, quantile_disc(t.plain_ns, 0.5) AS plain_ns
    FROM step_samples t JOIN usual u USING (session)
    JOIN step_medians m ON m.session = t.session AND m.step = t.step AND m.usable
    WHERE t.sampled
    GROUP BY ALL
),
own AS (
    SELECT session, world_size, batch, stage, quantile_disc(plain_ns, 0.5) AS plain_ns,
           sum(n_steps) AS n
    FROM obs GROUP BY ALL
),
pooled AS (
    SELECT world_size, batch, stage, quantile_disc(plain_ns, 0.5) AS plain_ns,
           sum(n_steps) AS n
    FROM obs GROUP BY ALL
)
SELECT o.session, o.stage,
       CASE WHEN o.n >= 20 AND o.plain_ns > 0 THEN o.plain_ns
            WHEN p.n >= 20 AND p.plain_ns > 0 THEN p.plain_ns END AS b_ns
FROM own o LEFT JOIN pooled p ON p.world_size = o.world_size AND p.stage = o.stage
     AND p.batch IS NOT DISTINCT FROM o.batch
