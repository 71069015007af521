-- When a checkpoint was written beside the training, one row a stretch: any rank's saves in the
-- background, put together where they overlap. A save whose end was never seen is not known here.
WITH saves_beside AS (
    SELECT m.session, p.start_ns, p.start_ns + p.dur_ns AS stop_ns
    FROM spans p JOIN members m USING (process_id)
    WHERE p.in_step AND p.name = 'save' AND p.dur_ns > 0
      AND CASE WHEN json_valid(p.attrs) THEN json_extract_string(p.attrs, '$.background') = 'true' END
),
fresh AS (
    SELECT *, CASE WHEN start_ns < max(stop_ns) OVER (PARTITION BY session ORDER BY start_ns, stop_ns
                   ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) THEN 0 ELSE 1 END AS opens
    FROM saves_beside
),
stretches AS (
    SELECT *, sum(opens) OVER (PARTITION BY session ORDER BY start_ns, stop_ns
                               ROWS UNBOUNDED PRECEDING) AS number
    FROM fresh
)
SELECT session, number::INTEGER AS number, min(start_ns) AS start_ns, max(stop_ns) AS stop_ns
FROM stretches GROUP BY session, number
