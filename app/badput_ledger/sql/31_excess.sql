-- Warm-up and straggler excess of each step row: the plain duration above the stage's usual
-- one. What is recorded as communication or host time is G.comm or G.host, never straggling; what
-- a write beside the step or a held clock explains is E.interference or G.throttle first.
-- rows: many
WITH effect AS (
    SELECT process_id, seq, sum(ns) FILTER (WHERE cause = 'E.interference')::BIGINT AS interference_ns,
           sum(ns) FILTER (WHERE cause = 'G.throttle')::BIGINT AS throttle_ns
    FROM effects WHERE ns > 0 GROUP BY process_id, seq
),
warm AS (
    SELECT f.*, u.b_ns AS all_b_ns, f.plain_ns AS full_plain_ns,
           u.b_ns IS NOT NULL AND coalesce(f.row_step < u.first_usual_step, true) AS early_step,
           part_of(greatest(f.plain_ns - g.b_ns * f.row_steps, 0), from_step, to_step, den) AS over_ns,
           g.b_ns AS stage_b_ns
    FROM fates f LEFT JOIN usual u USING (session)
    LEFT JOIN stage_usual g ON g.session = f.session AND g.stage = coalesce(f.stage, -1)
),
booked AS (
    SELECT w.*, CASE WHEN early_step OR compile_ns > 0
                     THEN greatest(compile_ns, coalesce(over_ns, 0)) ELSE 0 END AS warm_ns,
           coalesce(e.interference_ns, 0) AS interference_ns, coalesce(e.throttle_ns, 0) AS throttle_ns,
           least(coalesce(m.waited_ns, 0), w.comm_ns) AS met_ns, m.own_ns
    FROM warm w LEFT JOIN effect e USING (process_id, seq) LEFT JOIN met m USING (process_id, seq)
),
-- One rank a stage and replica, every stage known: only then is a slow stage told apart without
-- the times of collectives.
piped AS (
    SELECT session FROM members GROUP BY session
    HAVING max(stages) >= 2 AND count(stage) = count(*)
       AND count(*) = count(DISTINCT (replica, stage))
)
SELECT b.*, p.session IS NOT NULL AS piped,
       greatest(CASE WHEN p.session IS NOT NULL THEN coalesce(b.over_ns - b.warm_ns, 0)
                     WHEN b.own_ns IS NULL THEN 0
                     WHEN b.warm_ns > 0 THEN least(b.own_ns, coalesce(b.over_ns - b.warm_ns, 0))
                     ELSE b.own_ns END - b.interference_ns - b.throttle_ns, 0) AS slow_ns
FROM booked b LEFT JOIN piped p ON p.session = b.session
