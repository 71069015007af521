-- Gaps before spans inside the loop. A data wait of the next step lies in the first of them.
WITH gaps AS (
    SELECT l.session, l.rank, l.before_ns AS start_ns, l.start_ns AS stop_ns
    FROM line l JOIN rank_steps k USING (session, rank)
    WHERE NOT l.is_step AND l.start_ns > l.before_ns AND l.before_ns >= k.first_start_ns
),
following AS (
    SELECT g.*, s.start_ns AS next_ns FROM gaps g ASOF LEFT JOIN step_rows s
      ON g.session = s.session AND g.rank = s.rank AND s.start_ns >= g.stop_ns
),
-- Of several steps that begin at one instant, as lines of a log may, the first.
waits AS (
    SELECT f.session, f.rank, f.start_ns, f.stop_ns, any_value(s.process_id) AS process_id,
           min(s.seq) AS seq, coalesce(arg_min(s.pre_data_ns, s.seq), 0) AS pre_data_ns
    FROM following f LEFT JOIN step_rows s
      ON s.session = f.session AND s.rank = f.rank AND s.start_ns = f.next_ns
    GROUP BY f.session, f.rank, f.start_ns, f.stop_ns
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
