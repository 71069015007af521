-- The segments after each rank's last step or span.
SELECT session, rank, 'C.model' AS leaf, from_ns AS start_ns,
       least(greatest(CASE WHEN completed THEN death_ns ELSE noticed_ns END, from_ns), end_ns) AS stop_ns
FROM ends WHERE NOT stepped
UNION ALL
SELECT session, rank, 'B.teardown',
       least(greatest(CASE WHEN completed THEN death_ns ELSE noticed_ns END, from_ns), end_ns), end_ns
FROM ends WHERE NOT stepped
UNION ALL
SELECT session, rank, CASE WHEN completed THEN 'B.teardown' ELSE 'U.unaccounted' END, from_ns, end_ns
FROM ends WHERE stepped AND (completed OR NOT end_known)
UNION ALL
SELECT session, rank, 'D.partial', from_ns, partial_ns
FROM ends WHERE stepped AND NOT completed AND end_known
UNION ALL
SELECT session, rank, 'B.hang', partial_ns, noticed_ns
FROM ends WHERE stepped AND NOT completed AND end_known
UNION ALL
SELECT session, rank, 'B.teardown', greatest(noticed_ns, partial_ns), end_ns
FROM ends WHERE stepped AND NOT completed AND end_known
