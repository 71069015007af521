-- Steps beside a write, and steps in which every sample of the GPU says that power or heat held its
-- clock down: what each lasted. Only of a run that has either; steps that warm up are left out.
WITH samples AS (
    SELECT gpu_uuid, time_ns, count(*) OVER w AS seen, sum(held::INTEGER) OVER w AS slow
    FROM (SELECT DISTINCT gpu_uuid, time_ns, regexp_matches(throttle_names,
                 'sw_power_cap|hw_slowdown|sw_thermal_slowdown|hw_thermal_slowdown|hw_power_brake|board_limit|reliability') AS held
          FROM gpu_samples WHERE throttle_names IS NOT NULL
            AND EXISTS (FROM gpu_samples WHERE throttle_names <> ''))
    -- samples of one instant count together
    WINDOW w AS (PARTITION BY gpu_uuid ORDER BY time_ns RANGE UNBOUNDED PRECEDING)
),
watched AS (SELECT session FROM writes UNION
            SELECT m.session FROM members m SEMI JOIN samples USING (gpu_uuid)),
plain AS (
    SELECT f.session, f.rank, f.process_id, f.seq, f.row_step, f.row_steps, f.start_ns, f.plain_ns, f.fate,
           f.start_ns + f.time_ns AS stop_ns, coalesce(f.stage, -1) AS stage, m.gpu_uuid,
           u.world_size, u.batch
    FROM fates f SEMI JOIN watched USING (session) JOIN members m USING (process_id)
    JOIN usual u ON u.session = f.session
    JOIN (SELECT session, step, bool_and(usable) AS usable FROM step_samples GROUP BY session, step) d
      ON d.session = f.session AND d.step = f.row_step AND d.usable
    WHERE f.n_steps = f.row_steps AND f.row_step >= coalesce(u.first_usual_step, f.row_step)
),
beside AS (
    SELECT p.process_id, p.seq, min(w.number) AS number
    FROM plain p JOIN writes w ON w.session = p.session AND w.start_ns < p.stop_ns AND w.stop_ns > p.start_ns
    GROUP BY ALL
),
after AS (SELECT p.*, s.seen, s.slow FROM plain p ASOF LEFT JOIN samples s
          ON s.gpu_uuid = p.gpu_uuid AND s.time_ns <= p.stop_ns),
before AS (SELECT p.process_id, p.seq, s.seen, s.slow FROM plain p ASOF LEFT JOIN samples s
           ON s.gpu_uuid = p.gpu_uuid AND s.time_ns < p.start_ns),
judged AS (
    SELECT a.*, b.number AS write, coalesce(a.seen - coalesce(e.seen, 0), 0) AS samples,
           coalesce(a.slow - coalesce(e.slow, 0), 0) AS held
    FROM after a JOIN before e USING (process_id, seq) LEFT JOIN beside b USING (process_id, seq)
)
SELECT session, rank, stage, world_size, batch, process_id, seq, row_steps, plain_ns, fate,
       CASE WHEN write IS NOT NULL THEN 'E.interference'
            WHEN held > 0 AND held = samples THEN 'G.throttle'
            WHEN held > 0 THEN 'unclear' ELSE 'plain' END AS cause, write
FROM judged
