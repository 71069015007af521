-- Level 2 of the stretches: like `divided`, where none of what makes a row loose occurs.
-- rows: asked once
WITH kept AS (
    SELECT session, rank, process_id, seq, start_ns, save_ns AS "E.save", snapshot_ns AS "E.snapshot",
           eval_ns AS "E.eval", overhead_ns AS "E.overhead", data_ns + pre_data_ns AS "G.data",
           wait_ns AS "G.bubble", comm_ns AS "G.comm",
           host_ns + time_ns - dur_ns - pre_data_ns AS "G.host", padding_ns AS "F.padding",
           busy_ns - comm_ns - host_ns - padding_ns AS "H.productive"
    FROM stretch_fates WHERE fate = 'kept'
)
SELECT session, rank, process_id, seq, start_ns, fate AS leaf, time_ns AS ns FROM stretch_fates WHERE fate <> 'kept'
UNION ALL
SELECT session, rank, process_id, seq, start_ns, leaf, ns FROM kept
UNPIVOT (ns FOR leaf IN ("E.save", "E.snapshot", "E.eval", "E.overhead", "G.data", "G.bubble", "G.comm",
         "G.host", "F.padding", "H.productive"))
