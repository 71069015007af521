-- Warm-up and straggler excess of each step row: the plain duration above the stage's usual
-- one. What is recorded as communication or host time is G.comm or G.host, never straggling.
-- rows: many
WITH warm AS (
    SELECT f.*, u.b_ns AS all_b_ns, f.plain_ns AS full_plain_ns,
           u.b_ns IS NOT NULL AND coalesce(f.row_step < u.first_usual_step, true) AS early_step,
           part_of(greatest(f.plain_ns - g.b_ns * f.row_steps, 0), from_step, to_step, den) AS over_ns,
           g.b_ns AS stage_b_ns
    FROM fates f LEFT JOIN usual u USING (session)
    LEFT JOIN stage_usual g ON g.session = f.session AND g.stage = coalesce(f.stage, -1)
),
booked AS (
    SELECT *, CASE WHEN early_step OR compile_ns > 0
                   THEN greatest(compile_ns, coalesce(over_ns, 0)) ELSE 0 END AS warm_ns
    FROM warm
),
-- One rank a stage and replica, every stage known: only then is a slow stage told apart.
piped AS (
    SELECT session FROM members GROUP BY session
    HAVING max(stages) >= 2 AND count(stage) = count(*)
       AND count(*) = count(DISTINCT (replica, stage))
)
SELECT b.*, p.session IS NOT NULL AS piped,
       CASE WHEN p.session IS NULL OR b.stage_b_ns IS NULL THEN 0
            ELSE greatest(b.over_ns - b.warm_ns, 0) END AS slow_ns
FROM booked b LEFT JOIN piped p ON p.session = b.session
