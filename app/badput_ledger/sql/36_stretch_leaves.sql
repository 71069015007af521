-- Level 2 of the stretches: like `divided`, where none of what makes a row loose occurs.
WITH kept AS (
    SELECT *, dur_ns - overhead_ns - eval_ns - save_ns - snapshot_ns - data_ns - wait_ns - comm_ns
              - host_ns AS rest_ns
    FROM stretch_fates WHERE fate = 'kept'
)
SELECT session, rank, process_id, seq, start_ns, fate AS leaf, time_ns AS ns FROM stretch_fates WHERE fate <> 'kept'
UNION ALL
SELECT session, rank, process_id, seq, start_ns, v.leaf, v.ns
FROM kept, LATERAL (VALUES
    ('E.save', save_ns), ('E.snapshot', snapshot_ns), ('E.eval', eval_ns), ('E.overhead', overhead_ns),
    ('G.data', data_ns + pre_data_ns), ('G.bubble', wait_ns), ('G.comm', comm_ns),
    ('G.host', host_ns + time_ns - dur_ns - pre_data_ns), ('F.padding', padding_ns),
    ('H.productive', rest_ns - padding_ns)) v(leaf, ns)
