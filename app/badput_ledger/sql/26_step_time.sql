-- Each step row with its time: its own pieces and the loop time and data wait before it.
-- plain_ns is its duration without what is recorded as E or G.
-- rows: many
WITH own AS (
    SELECT l.process_id, l.seq, sum(l.stop_ns - l.start_ns)::BIGINT AS own_ns,
           sum(CASE WHEN l.before_ns >= k.first_start_ns THEN l.start_ns - l.before_ns ELSE 0 END)::BIGINT
               AS gap_ns
    FROM line l JOIN rank_steps k USING (session, rank)
    WHERE l.is_step GROUP BY l.process_id, l.seq
),
early AS (SELECT process_id, seq, sum(data_ns)::BIGINT AS data_ns FROM loop_gaps
          WHERE process_id IS NOT NULL GROUP BY ALL),
timed AS (
    SELECT r.*, coalesce(o.own_ns, 0) AS own_ns, coalesce(o.gap_ns, 0) AS gap_ns,
           coalesce(e.data_ns, 0) AS early_ns,
           least(coalesce(o.gap_ns, 0), r.pre_data_ns - coalesce(e.data_ns, 0)) AS gap_data_ns
    FROM step_rows r LEFT JOIN own o USING (process_id, seq) LEFT JOIN early e USING (process_id, seq)
)
SELECT *, own_ns + gap_ns + early_ns AS time_ns,
       data_ns + gap_data_ns + early_ns AS stall_ns,
       host_ns + gap_ns - gap_data_ns AS loop_ns,
       own_ns - overhead_ns - eval_ns - save_ns - snapshot_ns
              - data_ns - wait_ns - comm_ns - host_ns AS plain_ns,
       own_ns - overhead_ns - eval_ns - save_ns - snapshot_ns - data_ns - wait_ns AS busy_ns
FROM timed
