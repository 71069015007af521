-- Level 2: each step's nanoseconds divided. Kept steps give up E, G and padding; lost and
-- skipped ones only warm-up. What does not fit into its step makes the whole step U.
-- rows: many
WITH moved AS (
    SELECT e.*,
           CASE WHEN s.slow IS NULL THEN 0
                ELSE least(e.wait_ns, CASE WHEN e.slow_ns = s.slow[1] AND e.slow_ns > 0
                           THEN coalesce(s.slow[2], 0) ELSE s.slow[1] END) END AS waited_ns
    FROM excess e LEFT JOIN slowest s USING (session, replica, row_step, step)
),
sums AS (
    SELECT *, fate = 'kept' AS kept,
           CASE WHEN fate = 'kept'
                THEN warm_ns + overhead_ns + eval_ns + save_ns + snapshot_ns
                     + interference_ns + stall_ns + wait_ns + slow_ns + comm_ns + loop_ns + throttle_ns
                ELSE warm_ns END AS booked_ns,
           -- a slow step with no cause on record: only where no straggler explains it
           CASE WHEN fate = 'kept' AND warm_ns = 0 AND slow_ns = 0
                     AND interference_ns + throttle_ns = 0 AND full_plain_ns > 3 * stage_b_ns * row_steps
                THEN over_ns ELSE 0 END AS odd_ns
    FROM moved
),
checked AS (
    SELECT *, booked_ns > time_ns AS overbooked,
           CASE WHEN booked_ns + odd_ns > time_ns THEN 0 ELSE odd_ns END AS unexplained_ns
    FROM sums
),
rested AS (
    SELECT *, CASE WHEN overbooked THEN 0 ELSE time_ns - booked_ns - unexplained_ns END AS rest_ns
    FROM checked
)
SELECT session, rank, stage, replica, process_id, seq, row_step, step, n_steps, row_steps, start_ns,
       fate, at_risk_after, time_ns, tokens, padding, overbooked, busy_ns, wait_ns,
       CASE WHEN overbooked THEN 0 ELSE warm_ns END AS "C.warmup",
       CASE WHEN overbooked OR NOT kept THEN 0 ELSE save_ns END AS "E.save",
       CASE WHEN overbooked OR NOT kept THEN 0 ELSE snapshot_ns END AS "E.snapshot",
       CASE WHEN overbooked OR NOT kept THEN 0 ELSE interference_ns END AS "E.interference",
       CASE WHEN overbooked OR NOT kept THEN 0 ELSE eval_ns END AS "E.eval",
       CASE WHEN overbooked OR NOT kept THEN 0 ELSE overhead_ns END AS "E.overhead",
       CASE WHEN overbooked OR NOT kept THEN 0 ELSE stall_ns END AS "G.data",
       CASE WHEN overbooked OR NOT kept THEN 0 ELSE wait_ns - waited_ns END AS "G.bubble",
       CASE WHEN overbooked OR NOT kept THEN 0 ELSE slow_ns + waited_ns + met_ns END AS "G.straggler",
       CASE WHEN overbooked OR NOT kept THEN 0 ELSE comm_ns - met_ns END AS "G.comm",
       CASE WHEN overbooked OR NOT kept THEN 0 ELSE loop_ns END AS "G.host",
       CASE WHEN overbooked OR NOT kept THEN 0 ELSE throttle_ns END AS "G.throttle",
       CASE WHEN overbooked THEN time_ns ELSE unexplained_ns END AS "U.unaccounted",
       CASE WHEN kept AND padding > 0 AND tokens >= padding
            THEN (rest_ns::HUGEINT * padding // tokens)::BIGINT ELSE 0 END AS "F.padding",
       rest_ns
FROM rested
