-- The segments after each rank's last step or span. What a person said was the search for the
-- cause takes the place of hang and teardown.
WITH ended AS (
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
),
looked AS (SELECT start_ns, end_ns FROM annotations WHERE kind = 'diagnosis'),
edges AS (
    SELECT session, rank, leaf, start_ns AS at_ns, start_ns, stop_ns FROM ended
    WHERE stop_ns > start_ns
    UNION
    SELECT e.session, e.rank, e.leaf, v.at_ns, e.start_ns, e.stop_ns
    FROM ended e JOIN (SELECT start_ns AS at_ns FROM looked UNION SELECT end_ns FROM looked) v
      ON v.at_ns > e.start_ns AND v.at_ns < e.stop_ns
),
pieces AS (
    SELECT session, rank, leaf, at_ns AS start_ns, coalesce(lead(at_ns) OVER (
               PARTITION BY session, rank, leaf, start_ns ORDER BY at_ns), stop_ns) AS stop_ns
    FROM edges
)
SELECT p.session, p.rank,
       CASE WHEN p.leaf IN ('B.hang', 'B.teardown', 'U.unaccounted') AND EXISTS (
                SELECT 1 FROM looked l WHERE l.start_ns <= p.start_ns AND l.end_ns >= p.stop_ns)
            THEN 'B.diagnosis' ELSE p.leaf END AS leaf, p.start_ns, p.stop_ns
FROM pieces p
