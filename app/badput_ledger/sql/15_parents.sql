-- The parent of each session that completed a step: the writer of the checkpoint that it
-- loaded, else the latest earlier session that executed the step it resumed from.
WITH live AS (SELECT * FROM resumes WHERE completed_upto IS NOT NULL),
candidates AS (
    SELECT c.session, c.ord, c.resumed_from, c.writer, c.loads,
           (SELECT max(p.ord) FROM live p WHERE p.ord < c.ord
             AND c.resumed_from BETWEEN p.first_step AND p.completed_upto) AS executed_it,
           (SELECT max(p.ord) FROM live p WHERE p.ord < c.ord
             AND p.resumed_from = c.resumed_from) AS began_there,
           (SELECT max(p.ord) FROM live p WHERE p.ord < c.ord) AS previous,
           (SELECT p.ord FROM live p WHERE p.session = c.writer) AS wrote_it,
           (SELECT arg_max(coalesce(p.job_id = c.job_id, false)
                           OR coalesce(p.attempt < c.attempt, false), p.ord)
            FROM live p WHERE p.ord < c.ord) AS same_job
    FROM live c
)
SELECT c.session, c.ord, c.resumed_from, p.session AS parent,
       CASE WHEN c.wrote_it IS NOT NULL THEN 'checkpoint loaded'
            WHEN p.session IS NULL THEN 'root'
            WHEN c.resumed_from = 0 AND c.loads = 0 THEN 'fresh start of the same job'
            ELSE 'step resumed from' END AS because
FROM candidates c
LEFT JOIN live p ON p.ord = CASE
    WHEN c.wrote_it IS NOT NULL THEN c.wrote_it
    WHEN c.resumed_from <= 0 THEN CASE WHEN c.same_job THEN c.previous END
    ELSE coalesce(c.executed_it, c.began_there) END
