-- Steps summed by session, rank and fate: the one pass over all rows that the totals need.
SELECT session, rank, replica, stage, fate, sum(n_steps)::BIGINT AS steps,
       sum(time_ns) AS time_ns, sum(tokens)::BIGINT AS tokens, sum(padding)::BIGINT AS padding,
       count(*) FILTER (WHERE overbooked) AS overbooked, sum(busy_ns) AS busy_ns, sum(wait_ns) AS wait_ns,
       sum("C.warmup") AS "C.warmup", sum("E.save") AS "E.save", sum("E.snapshot") AS "E.snapshot",
       sum("E.eval") AS "E.eval", sum("E.overhead") AS "E.overhead", sum("G.data") AS "G.data",
       sum("G.bubble") AS "G.bubble", sum("G.straggler") AS "G.straggler",
       sum("G.comm") AS "G.comm", sum("G.host") AS "G.host",
       sum("E.interference") AS "E.interference", sum("G.throttle") AS "G.throttle", sum("U.unaccounted") AS "U.unaccounted",
       sum("F.padding") AS "F.padding", sum(rest_ns - "F.padding") AS rest_ns
FROM divided GROUP BY session, rank, replica, stage, fate
