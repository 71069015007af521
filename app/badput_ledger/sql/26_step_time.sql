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
-- What a rank that stood still in a category of its step recorded there is B.hang by now.
stood AS (
    SELECT r.process_id, r.seq, h.phase,
           sum(least(h.stop_ns, r.stop_ns) - greatest(h.start_ns, r.start_ns))::BIGINT AS ns
    FROM hangs h JOIN step_rows r ON r.process_id = h.process_id
     AND r.start_ns < h.stop_ns AND r.stop_ns > h.start_ns
    GROUP BY ALL
),
still AS (
    SELECT process_id, seq, max(ns) FILTER (phase = 'data') AS data,
           sum(ns) FILTER (phase IN ('wait_activation', 'wait_gradient'))::BIGINT AS wait,
           sum(ns) FILTER (phase IN ('send', 'comm'))::BIGINT AS comm, max(ns) FILTER (phase = 'host') AS host,
           max(ns) FILTER (phase = 'overhead') AS overhead, max(ns) FILTER (phase = 'eval') AS eval,
           max(ns) FILTER (phase = 'save') AS save, max(ns) FILTER (phase = 'snapshot') AS snapshot,
           max(ns) FILTER (phase = 'compile') AS compile
    FROM stood GROUP BY process_id, seq
),
timed AS (
    SELECT r.* REPLACE (
               greatest(r.data_ns - coalesce(h.data, 0), 0) AS data_ns,
               greatest(r.wait_ns - coalesce(h.wait, 0), 0) AS wait_ns,
               greatest(r.comm_ns - coalesce(h.comm, 0), 0) AS comm_ns,
               greatest(r.host_ns - coalesce(h.host, 0), 0) AS host_ns,
               greatest(r.overhead_ns - coalesce(h.overhead, 0), 0) AS overhead_ns,
               greatest(r.eval_ns - coalesce(h.eval, 0), 0) AS eval_ns,
               greatest(r.save_ns - coalesce(h.save, 0), 0) AS save_ns,
               greatest(r.snapshot_ns - coalesce(h.snapshot, 0), 0) AS snapshot_ns,
               greatest(r.compile_ns - coalesce(h.compile, 0), 0) AS compile_ns),
           coalesce(o.own_ns, 0) AS own_ns, coalesce(o.gap_ns, 0) AS gap_ns,
           coalesce(e.data_ns, 0) AS early_ns,
           least(coalesce(o.gap_ns, 0), r.pre_data_ns - coalesce(e.data_ns, 0)) AS gap_data_ns
    FROM step_rows r LEFT JOIN own o USING (process_id, seq) LEFT JOIN early e USING (process_id, seq)
         LEFT JOIN still h USING (process_id, seq)
)
SELECT *, own_ns + gap_ns + early_ns AS time_ns,
       data_ns + gap_data_ns + early_ns AS stall_ns,
       host_ns + gap_ns - gap_data_ns AS loop_ns,
       own_ns - overhead_ns - eval_ns - save_ns - snapshot_ns
              - data_ns - wait_ns - comm_ns - host_ns AS plain_ns,
       own_ns - overhead_ns - eval_ns - save_ns - snapshot_ns - data_ns - wait_ns AS busy_ns
FROM timed
