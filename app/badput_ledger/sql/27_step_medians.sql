-- One row a session and step: the lower median over ranks of the plain duration of a step.
SELECT session, step, max(n_steps) AS n_steps,
       quantile_disc(plain_ns // n_steps, 0.5) AS plain_ns,
       quantile_disc(tokens // n_steps, 0.5) AS tokens,
       NOT bool_or(eval_ns > 0 OR save_ns > 0 OR snapshot_ns > 0 OR compile_ns > 0) AS usable
FROM step_time GROUP BY session, step
