-- Every segment of a rank's session that is not a step: spans, gaps, start-up and end.
WITH head AS (
    -- before the first step: what nothing covers, and the first step's wait for data
    SELECT l.session, l.rank, l.before_ns AS start_ns, l.start_ns AS stop_ns,
           CASE WHEN l.is_step THEN least(l.start_ns - l.before_ns, coalesce(r.pre_data_ns, 0))
                ELSE 0 END AS data_ns
    FROM line l LEFT JOIN rank_steps k USING (session, rank)
    LEFT JOIN step_rows r ON l.is_step AND r.process_id = l.process_id AND r.seq = l.seq
    WHERE l.start_ns > l.before_ns
      AND (k.first_start_ns IS NULL OR l.before_ns < k.first_start_ns)
),
-- Waits for data outside a step, and the first step from then on.
fed AS (
    SELECT l.session, l.rank, l.start_ns, l.stop_ns, any_value(r.process_id) AS process_id, min(r.seq) AS seq
    FROM (SELECT l.*, s.start_ns AS next_ns
          FROM (FROM line WHERE NOT is_step AND leaf = 'G.data') l ASOF LEFT JOIN step_rows s
            ON l.session = s.session AND l.rank = s.rank AND s.start_ns >= l.start_ns) l
    LEFT JOIN step_rows r ON r.session = l.session AND r.rank = l.rank AND r.start_ns = l.next_ns
    GROUP BY l.session, l.rank, l.start_ns, l.stop_ns
)
SELECT session, rank, leaf, start_ns, stop_ns, process_id, seq, 'span' AS kind
FROM line WHERE NOT is_step AND leaf <> 'G.data'
UNION ALL
SELECT session, rank, 'C.model', start_ns, stop_ns - data_ns, NULL, NULL, 'uncovered start-up' FROM head
UNION ALL
SELECT session, rank, 'C.data', stop_ns - data_ns, stop_ns, NULL, NULL, 'first wait for data' FROM head
UNION ALL
SELECT session, rank, 'U.unaccounted', start_ns + data_ns, stop_ns, NULL, NULL, 'uncovered in the loop'
FROM loop_gaps
UNION ALL
-- A wait for data outside a step shares the fate of the step that it fed.
SELECT w.session, w.rank, coalesce(f.fate, 'G.data'), w.start_ns, w.stop_ns, NULL, NULL, 'data span'
FROM fed w LEFT JOIN (SELECT process_id, seq, max(fate) FILTER (WHERE fate <> 'kept') AS fate
           FROM fates GROUP BY process_id, seq) f USING (process_id, seq)
UNION ALL
SELECT session, rank, leaf, start_ns, stop_ns, NULL, NULL, 'end' FROM tail_segments WHERE stop_ns > start_ns
