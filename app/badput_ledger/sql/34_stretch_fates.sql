-- Stretches with their fate, all steps of a stretch having the same; NULL where they do not.
WITH marked AS (
    SELECT t.session, t.process_id, t.seq,
           bool_or(w.time_ns > t.last_start_ns AND w.to_step <= t.before_step) AS rewound,
           bool_or(w.declared AND w.time_ns > t.last_start_ns AND w.to_step <= t.before_step) AS declared,
           bool_or(NOT (w.time_ns > t.last_start_ns AND w.to_step <= t.before_step)) AS divided
    FROM stretch_rows t JOIN rewinds w
      ON w.session = t.session AND w.rank = t.rank AND w.time_ns > t.start_ns AND w.to_step < t.step
    GROUP BY ALL
)
SELECT t.*, t.stop_ns - t.from_ns AS time_ns,
       t.dur_ns - t.overhead_ns - t.eval_ns - t.save_ns - t.snapshot_ns - t.data_ns - t.wait_ns AS busy_ns,
       c.at_risk_after,
       CASE WHEN m.divided THEN NULL
            WHEN m.rewound THEN CASE WHEN m.declared THEN 'D.rewind' ELSE 'D.recomputed' END
            WHEN t.before_step >= coalesce(c.completed_upto, t.before_step) THEN 'D.partial'
            WHEN t.step <= least(c.completed_upto, c.kept_upto) THEN 'kept'
            WHEN t.before_step >= c.kept_upto AND t.step <= c.completed_upto THEN c.lost_leaf
       END AS fate
FROM stretch_rows t JOIN cuts c USING (session) LEFT JOIN marked m USING (session, process_id, seq)
