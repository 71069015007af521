-- b, the usual step of a session: from at least 20 of its own steps, else of the run's at
-- equal world and batch, else NULL. rough_ns takes any steps and only cuts D.partial.
WITH own AS (
    SELECT m.session, s.world_size,
           quantile_disc(m.tokens, 0.5) AS batch,
           quantile_disc(m.plain_ns, 0.5) AS rough_ns,
           quantile_disc(m.plain_ns, 0.5) FILTER (WHERE m.usable) AS b_ns,
           coalesce(sum(m.n_steps) FILTER (WHERE m.usable), 0) AS n
    FROM step_medians m JOIN sessions s USING (session) GROUP BY m.session, s.world_size
),
pooled AS (
    SELECT o.world_size, o.batch, quantile_disc(m.plain_ns, 0.5) AS b_ns, sum(m.n_steps) AS n
    FROM step_medians m JOIN own o USING (session) WHERE m.usable GROUP BY o.world_size, o.batch
),
chosen AS (
    SELECT o.*, CASE WHEN o.n >= 20 AND o.b_ns > 0 THEN o.b_ns
                     WHEN p.n >= 20 AND p.b_ns > 0 THEN p.b_ns END AS usual_ns
    FROM own o LEFT JOIN pooled p
      ON p.world_size = o.world_size AND p.batch IS NOT DISTINCT FROM o.batch
),
-- The first step that took no more than 1.5 b: of the sampled ones, then of those before it.
sampled AS (
    SELECT c.session, c.usual_ns, min(m.step) FILTER (WHERE 2 * m.plain_ns <= 3 * c.usual_ns) AS step
    FROM chosen c LEFT JOIN step_medians m USING (session) GROUP BY c.session, c.usual_ns
),
early AS (
    SELECT s.session, s.step, f.usual_ns, quantile_disc(s.plain_ns, 0.5) AS plain_ns
    FROM step_samples s JOIN sampled f USING (session)
    WHERE s.step <= coalesce(f.step, s.step) AND f.usual_ns IS NOT NULL GROUP BY ALL
),
first AS (
    SELECT session, min(step) AS step FROM early WHERE 2 * plain_ns <= 3 * usual_ns GROUP BY session
)
SELECT c.session, c.world_size, c.batch, c.usual_ns AS b_ns, c.n >= 20 AS of_its_own,
       coalesce(c.usual_ns, c.rough_ns) AS rough_ns, f.step AS first_usual_step
FROM chosen c LEFT JOIN first f USING (session)
