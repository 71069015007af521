-- How many rows measured each thing: a leaf that nothing measured is NULL, not zero.
SELECT data_ns + pre_data_ns AS data, pre_data_ns + host_ns AS host,
       wait_activation_ns + wait_gradient_ns AS bubble, send_ns + comm_ns AS comm,
       overhead_ns AS overhead, eval_ns AS eval, save_ns AS save, snapshot_ns AS snapshot,
       applied, committed, padding, tokens, seq AS steps
FROM step_values
