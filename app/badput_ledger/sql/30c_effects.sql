-- E.interference and G.throttle of step rows (rule 9): the excess of the kept steps that a write or a
-- held clock covers over the lower median of the steps without either, at equal world, batch and
-- stage, from at least 20. Less in one step makes up for more in another; never below nothing.
WITH own AS (
    SELECT session, stage, world_size, batch, quantile_disc(plain_ns // row_steps, 0.5) AS base_ns,
           sum(row_steps) AS n
    FROM slowed WHERE cause = 'plain' GROUP BY ALL
),
pooled AS (
    SELECT world_size, batch, stage, quantile_disc(plain_ns // row_steps, 0.5) AS base_ns, sum(row_steps) AS n
    FROM slowed WHERE cause = 'plain' GROUP BY ALL
),
over AS (
    SELECT s.session, s.rank, s.cause, s.write, s.process_id, s.seq,
           s.plain_ns - s.row_steps * CASE WHEN o.n >= 20 THEN o.base_ns WHEN p.n >= 20 THEN p.base_ns END
               AS over_ns
    FROM slowed s LEFT JOIN own o USING (session, stage)
    LEFT JOIN pooled p ON p.world_size = s.world_size AND p.stage = s.stage
         AND p.batch IS NOT DISTINCT FROM s.batch
    WHERE s.cause IN ('E.interference', 'G.throttle') AND s.fate = 'kept'
),
summed AS (
    SELECT *, greatest(sum(over_ns::HUGEINT) OVER whole, 0) AS given, sum(greatest(over_ns, 0)::HUGEINT) OVER whole AS above,
           sum(greatest(over_ns, 0)::HUGEINT) OVER upto AS reached
    FROM over WINDOW whole AS (PARTITION BY session, rank, cause, write),
         upto AS (PARTITION BY session, rank, cause, write ORDER BY process_id, seq ROWS UNBOUNDED PRECEDING)
)
SELECT process_id, seq, cause, over_ns IS NOT NULL AS known,
       CASE WHEN above > 0 THEN (given * reached // above
            - given * (reached - greatest(over_ns, 0)) // above)::BIGINT ELSE 0 END AS ns
FROM summed
