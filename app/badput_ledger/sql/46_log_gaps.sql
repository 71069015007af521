-- Steps that may have run after the last logged one of a session that broke off: at most
-- interval - 1, and no more than fit before its end at the usual step.
SELECT e.session, min(least(e.log_interval - 1,
           CASE WHEN u.b_ns > 0 THEN (coalesce(n.start_ns, e.end_ns) - e.from_ns) // u.b_ns
                ELSE e.log_interval - 1 END)) AS extra
FROM ends e JOIN sessions s USING (session) LEFT JOIN usual u USING (session)
LEFT JOIN sessions n ON n.ord = s.ord + 1 AND NOT s.end_known
WHERE e.stepped AND e.log_interval > 1 AND NOT e.completed
GROUP BY e.session
