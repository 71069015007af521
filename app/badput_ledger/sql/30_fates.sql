-- What became of each step row: kept, a D leaf or an F leaf. A row of several steps becomes one for
-- each fate among them; the lost ones take the floor of their share.
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
    SELECT * EXCLUDE (hits, skip_leaf), len(hits) > 0 AS rewound, coalesce(skip_leaf, 'kept') AS kept_leaf,
        CASE WHEN list_bool_or(list_transform(hits, lambda m: m.declared))
             THEN 'D.rewind' ELSE 'D.recomputed' END AS rewind_leaf,
        -- the last of its steps that was finished, and the last that counts (least skips NULL)
        least(step, greatest(coalesce(completed_upto, step - n_steps), step - n_steps)) AS done_to,
        least(step, greatest(least(coalesce(completed_upto, step - n_steps), kept_upto), step - n_steps)) AS kept_to
    FROM marked
),
counted AS MATERIALIZED (
    SELECT *, coalesce(rewound, false) AS whole, kept_to - (step - n_steps) AS kept_steps,
           done_to - kept_to AS lost_steps, step - done_to AS partial_steps
    FROM judged
),
piece AS (  -- where each begins and ends among the steps of its row: lost, partial, kept
    SELECT *, step AS last, n_steps AS steps, 0 AS from_step, n_steps AS to_step, rewind_leaf AS fate
    FROM counted WHERE whole
    UNION ALL
    SELECT *, done_to, lost_steps, 0, lost_steps, lost_leaf
    FROM counted WHERE NOT whole AND lost_steps > 0
    UNION ALL
    SELECT *, step, partial_steps, lost_steps, lost_steps + partial_steps, 'D.partial'
    FROM counted WHERE NOT whole AND partial_steps > 0
    UNION ALL
    SELECT *, kept_to, kept_steps, n_steps - kept_steps, n_steps, kept_leaf
    FROM counted WHERE NOT whole AND kept_steps > 0
),
share AS (
    SELECT session, rank, stage, replica, process_id, seq, start_ns, plain_ns, n_steps AS row_steps,
           last AS step, steps AS n_steps, fate, at_risk_after, from_step, to_step,
           CASE WHEN steps = n_steps THEN 1 ELSE n_steps END AS den
    FROM piece
)
SELECT s.*, t.step AS row_step,
       -- the share of a nanosecond or token count: floors that add up to the whole
       part_of(t.time_ns, from_step, to_step, den) AS time_ns, part_of(t.stall_ns, from_step, to_step, den) AS stall_ns,
       part_of(t.loop_ns, from_step, to_step, den) AS loop_ns, part_of(t.wait_ns, from_step, to_step, den) AS wait_ns,
       part_of(t.comm_ns, from_step, to_step, den) AS comm_ns, part_of(t.busy_ns, from_step, to_step, den) AS busy_ns,
       part_of(t.overhead_ns, from_step, to_step, den) AS overhead_ns,
       part_of(t.eval_ns, from_step, to_step, den) AS eval_ns, part_of(t.save_ns, from_step, to_step, den) AS save_ns,
       part_of(t.snapshot_ns, from_step, to_step, den) AS snapshot_ns,
       part_of(t.compile_ns, from_step, to_step, den) AS compile_ns,
       part_of(t.tokens, from_step, to_step, den) AS tokens, part_of(t.padding, from_step, to_step, den) AS padding
FROM share s JOIN step_time t USING (process_id, seq)
