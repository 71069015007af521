-- Steps that may have run after the last logged one of a session that broke off: at most
-- interval - 1, and no more than fit before its end at the usual step.
SELECT e.session, min(least(e.log_interval - 1,
           CASE WHEN u.b_ns > 0 THEN (coalesce(n.start_ns, e.end_ns) - e.from_ns) // u.b_ns
                ELSE e.log_interval - 1 END)) AS extra
FROM ends e JOIN sessions s USING (session) LEFT JOIN usual u USING (session)
LEFT JOIN sessions n ON n.ord = s.ord + 1 AND NOT s.end_known
WHERE e.stepped AND e.log_interval > 1 AND NOT e.completed
GROUP BY e.session
UNION ALL
-- and of one that loaded a checkpoint and was gone before anything told of a step
SELECT p.session, min(least(i.most, CASE WHEN i.b_ns > 0 THEN (p.stop_ns - p.start_ns) // i.b_ns ELSE i.most END))
FROM span_rows p LEFT JOIN rank_steps k USING (session, rank),
     (SELECT max(log_interval) - 1 AS most, (SELECT min(b_ns) FROM usual) AS b_ns FROM rank_steps) i
WHERE p.open_end AND p.leaf = 'D.partial' AND k.session IS NULL AND i.most > 0
GROUP BY p.session
