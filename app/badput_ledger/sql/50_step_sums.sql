-- Steps summed by session, rank and fate: rows looked at one by one, and stretches.
WITH pieces AS (
    SELECT session, rank, replica, stage, fate, n_steps, time_ns, tokens, padding, overbooked, busy_ns,
           wait_ns, "C.warmup", "E.save", "E.snapshot", "E.eval", "E.overhead", "G.data", "G.bubble",
           "G.straggler", "G.comm", "G.host", "E.interference", "G.throttle", "U.unaccounted", "F.padding", rest_ns
    FROM divided
    UNION ALL
    SELECT session, rank, replica, stage, fate, steps, time_ns, tokens, padding, false, busy_ns, wait_ns,
           0, save_ns, snapshot_ns, eval_ns, overhead_ns, data_ns + pre_data_ns, wait_ns, 0, comm_ns,
           host_ns + time_ns - dur_ns - pre_data_ns, 0, 0, 0, padding_ns,
           busy_ns - comm_ns - host_ns
    FROM stretch_fates WHERE fate = 'kept'
    UNION ALL
    SELECT session, rank, replica, stage, fate, steps, time_ns, tokens, padding, false, busy_ns, wait_ns,
           0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, time_ns
    FROM stretch_fates WHERE fate <> 'kept'
)
SELECT session, rank, replica, stage, fate, sum(n_steps)::BIGINT AS steps,
       sum(time_ns) AS time_ns, sum(tokens)::BIGINT AS tokens, sum(padding)::BIGINT AS padding,
       count(*) FILTER (WHERE overbooked) AS overbooked, sum(busy_ns) AS busy_ns, sum(wait_ns) AS wait_ns,
       sum("C.warmup") AS "C.warmup", sum("E.save") AS "E.save", sum("E.snapshot") AS "E.snapshot",
       sum("E.eval") AS "E.eval", sum("E.overhead") AS "E.overhead", sum("G.data") AS "G.data",
       sum("G.bubble") AS "G.bubble", sum("G.straggler") AS "G.straggler",
       sum("G.comm") AS "G.comm", sum("G.host") AS "G.host",
       sum("E.interference") AS "E.interference", sum("G.throttle") AS "G.throttle", sum("U.unaccounted") AS "U.unaccounted",
       sum("F.padding") AS "F.padding", sum(rest_ns - "F.padding") AS rest_ns
FROM pieces GROUP BY session, rank, replica, stage, fate
