-- Step rows that are looked at one by one, with their session. In a long run these are the
-- rows that are not summed in `stretches`; otherwise all.
-- rows: many
SELECT m.session, m.rank, m.stage, m.replica, s.process_id, s.seq, s.step,
       greatest(s.n_steps, 1)::BIGINT AS n_steps,
       s.start_ns, s.start_ns + greatest(s.dur_ns, 0) AS stop_ns,
       greatest(s.dur_ns, 0) AS dur_ns,
       greatest(coalesce(s.pre_data_ns, 0), 0) AS pre_data_ns,
       s.tokens, s.padding, s.applied, s.committed,
       coalesce(s.data_ns, 0) AS data_ns,
       coalesce(s.wait_activation_ns, 0) + coalesce(s.wait_gradient_ns, 0) AS wait_ns,
       coalesce(s.send_ns, 0) + coalesce(s.comm_ns, 0) AS comm_ns,
       coalesce(s.host_ns, 0) AS host_ns, coalesce(s.overhead_ns, 0) AS overhead_ns,
       coalesce(s.eval_ns, 0) AS eval_ns, coalesce(s.save_ns, 0) AS save_ns,
       coalesce(s.snapshot_ns, 0) AS snapshot_ns, coalesce(s.compile_ns, 0) AS compile_ns
FROM loose_steps s JOIN members m USING (process_id)
