-- How many rows measured each thing: a leaf that nothing measured is NULL, not zero.
SELECT count(data_ns) + count(pre_data_ns) AS data, count(pre_data_ns) + count(host_ns) AS host,
       count(wait_activation_ns) + count(wait_gradient_ns) AS bubble,
       count(send_ns) + count(comm_ns) AS comm, count(overhead_ns) AS overhead,
       count(eval_ns) AS eval, count(save_ns) AS save, count(snapshot_ns) AS snapshot,
       count(applied) AS applied, count(committed) AS committed, count(padding) AS padding,
       count(tokens) AS tokens, count(*) AS steps
FROM steps
