-- Steps whose update did not happen, by any rank's word.
SELECT session, step,
       CASE WHEN bool_or(applied = false) THEN 'F.skipped' ELSE 'F.uncommitted' END AS leaf
FROM step_rows WHERE applied = false OR committed = false
GROUP BY session, step
