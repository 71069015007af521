-- Gaps before spans inside the loop. A data wait of the next step lies in the first of them.
WITH gaps AS (
    SELECT l.session, l.rank, l.before_ns AS start_ns, l.start_ns AS stop_ns
    FROM line l JOIN rank_steps k USING (session, rank)
    WHERE NOT l.is_step AND l.start_ns > l.before_ns AND l.before_ns >= k.first_start_ns
),
waits AS (
    SELECT g.*, s.process_id, s.seq, coalesce(s.pre_data_ns, 0) AS pre_data_ns
    FROM gaps g ASOF LEFT JOIN step_rows s
      ON g.session = s.session AND g.rank = s.rank AND s.start_ns >= g.stop_ns
),
run AS (
    SELECT *, coalesce(sum(stop_ns - start_ns) OVER (
        PARTITION BY session, rank, process_id, seq ORDER BY start_ns
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0)::BIGINT AS earlier_ns
    FROM waits
)
SELECT session, rank, process_id, seq, start_ns, stop_ns,
       CASE WHEN process_id IS NULL THEN 0
            ELSE least(stop_ns - start_ns, greatest(pre_data_ns - earlier_ns, 0)) END AS data_ns
FROM run
