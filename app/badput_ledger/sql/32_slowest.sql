-- The two largest excesses of each pipeline replica and step, where there are any.
SELECT session, replica, row_step, step, max(slow_ns, 2) AS slow
FROM excess WHERE piped AND slow_ns > 0 AND fate = 'kept'
GROUP BY session, replica, row_step, step
