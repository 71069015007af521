-- Steps whose update did not happen, by any rank's word. What a rollback gave up is lost
-- anyway and says nothing about its repetition.
SELECT session, step,
       CASE WHEN bool_or(applied = false) THEN 'F.skipped' ELSE 'F.uncommitted' END AS leaf
FROM step_rows s
WHERE (applied = false OR committed = false)
  AND NOT EXISTS (SELECT 1 FROM rewinds w WHERE w.session = s.session AND w.rank = s.rank
                  AND w.time_ns > s.start_ns AND w.to_step < s.step)
GROUP BY session, step
