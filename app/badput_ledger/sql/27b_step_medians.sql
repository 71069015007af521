-- One row a session and sampled step: the lower median over ranks of the plain duration of a step.
SELECT session, step, max(n_steps) AS n_steps, quantile_disc(plain_ns, 0.5) AS plain_ns,
       quantile_disc(tokens, 0.5) AS tokens, bool_and(usable) AS usable
FROM step_samples WHERE sampled GROUP BY session, step
