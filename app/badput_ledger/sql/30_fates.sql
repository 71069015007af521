-- What became of each step row: kept, a D leaf or an F leaf. A row of several steps that the
-- cut divides becomes two; the lost one takes the floor of its share.
-- rows: many
WITH rewound AS (
    SELECT session, rank,
           list(struct_pack(to_step := to_step, time_ns := time_ns, declared := declared)) AS marks
    FROM rewinds GROUP BY session, rank
),
marked AS (
    SELECT t.*, c.kept_upto, c.completed_upto, c.lost_leaf, c.at_risk_after, k.leaf AS skip_leaf,
           list_filter(w.marks, lambda m: m.time_ns > t.start_ns AND m.to_step < t.step) AS hits
    FROM step_time t JOIN cuts c USING (session)
    LEFT JOIN rewound w USING (session, rank) LEFT JOIN skips k USING (session, step)
),
judged AS (
    SELECT * EXCLUDE (hits, skip_leaf),
        CASE WHEN len(hits) > 0 THEN
                 (CASE WHEN list_bool_or(list_transform(hits, lambda m: m.declared))
                       THEN 'D.rewind' ELSE 'D.recomputed' END)
             WHEN completed_upto IS NULL OR step - n_steps >= completed_upto THEN 'D.partial'
             WHEN step - n_steps >= kept_upto THEN lost_leaf
             ELSE coalesce(skip_leaf, 'kept') END AS fate,
        CASE WHEN coalesce(len(hits), 0) = 0 AND kept_upto > step - n_steps AND kept_upto < step
             THEN step - kept_upto ELSE 0 END AS lost_steps
    FROM marked
),
share AS (
    SELECT session, rank, stage, replica, process_id, seq, start_ns, plain_ns, n_steps AS row_steps,
           step, n_steps, fate, at_risk_after, 1 AS num, 1 AS den, false AS rest
    FROM judged WHERE lost_steps = 0
    UNION ALL
    SELECT session, rank, stage, replica, process_id, seq, start_ns, plain_ns, n_steps,
           step, lost_steps, CASE WHEN kept_upto = completed_upto THEN 'D.partial' ELSE lost_leaf END,
           at_risk_after, lost_steps, n_steps, false
    FROM judged WHERE lost_steps > 0
    UNION ALL
    SELECT session, rank, stage, replica, process_id, seq, start_ns, plain_ns, n_steps,
           kept_upto, n_steps - lost_steps, fate, at_risk_after, lost_steps, n_steps, true
    FROM judged WHERE lost_steps > 0
)
SELECT s.*, t.step AS row_step,
       -- the share of a nanosecond or token count: floor for the lost part, the rest for the kept
       part_of(t.time_ns, num, den, rest) AS time_ns, part_of(t.stall_ns, num, den, rest) AS stall_ns,
       part_of(t.loop_ns, num, den, rest) AS loop_ns, part_of(t.wait_ns, num, den, rest) AS wait_ns,
       part_of(t.comm_ns, num, den, rest) AS comm_ns, part_of(t.busy_ns, num, den, rest) AS busy_ns,
       part_of(t.overhead_ns, num, den, rest) AS overhead_ns,
       part_of(t.eval_ns, num, den, rest) AS eval_ns, part_of(t.save_ns, num, den, rest) AS save_ns,
       part_of(t.snapshot_ns, num, den, rest) AS snapshot_ns,
       part_of(t.compile_ns, num, den, rest) AS compile_ns,
       part_of(t.tokens, num, den, rest) AS tokens, part_of(t.padding, num, den, rest) AS padding
FROM share s JOIN step_time t USING (process_id, seq)
