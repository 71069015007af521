-- Checkpoints that were written, one row a session, step and path; durable only if every
-- rank that saves in that session made its share durable.
WITH writers AS (
    SELECT m.session, count(DISTINCT m.rank) AS ranks
    FROM checkpoints c JOIN members m USING (process_id) WHERE c.op = 'save' GROUP BY m.session
)
SELECT m.session, c.step, min(c.start_ns) AS start_ns,
       list(DISTINCT rtrim(c.path, '/')) FILTER (WHERE c.path IS NOT NULL) AS paths,
       -- and the name of one that is written aside and then renamed, under which it is loaded
       list(DISTINCT regexp_replace(regexp_replace(rtrim(c.path, '/'),
            '[._-](tmp|temp|new|part|partial|incomplete|inprogress)([._-]?[0-9]+)?$', ''),
            '(^|/)[._]?(tmp|temp|new|partial)[._-]([^/]+)$', '\1\3'))
           FILTER (WHERE c.path IS NOT NULL) AS final_paths,
       count(DISTINCT m.rank) FILTER (
           WHERE c.durable_ns IS NOT NULL AND coalesce(c.ok, true)) >= any_value(w.ranks) AS durable,
       max(c.durable_ns) AS durable_ns, sum(c.bytes)::BIGINT AS bytes,
       max(c.dur_ns) AS blocked_ns, count(DISTINCT m.rank) AS ranks
FROM checkpoints c JOIN members m USING (process_id) JOIN writers w ON w.session = m.session
WHERE c.op = 'save' AND c.step IS NOT NULL
GROUP BY m.session, c.step
