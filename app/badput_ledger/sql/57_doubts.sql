-- What is not certain, for the bounds: `down` may belong elsewhere, `up` may be missing.
WITH segment_doubts AS (
    SELECT session, rank, 'C.model' AS leaf, stop_ns - start_ns AS down, 0 AS up, 'uncovered start-up' AS why
    FROM rank_segments WHERE kind = 'uncovered start-up'
    UNION ALL
    SELECT g.session, g.rank, o.leaf, 0, g.stop_ns - g.start_ns, 'uncovered start-up'
    FROM rank_segments g, (VALUES ('C.data'), ('C.load'), ('C.rendezvous')) o(leaf)
    WHERE g.kind = 'uncovered start-up'
    UNION ALL
    -- where the step under way ended and the hang began is an estimate
    SELECT g.session, g.rank, v.leaf, CASE WHEN v.leaf = g.leaf THEN g.stop_ns - g.start_ns ELSE 0 END,
           CASE WHEN v.leaf = g.leaf THEN 0 ELSE g.stop_ns - g.start_ns END, 'partial step or hang'
    FROM tail_segments g, (VALUES ('D.partial'), ('B.hang'), ('B.teardown')) v(leaf)
    WHERE g.leaf IN ('D.partial', 'B.hang') AND g.stop_ns > g.start_ns
    UNION ALL
    -- steps that ran after the last logged line
    SELECT g.session, g.rank, v.leaf, 0, g.stop_ns - g.start_ns, 'steps between log lines'
    FROM tail_segments g JOIN ends e USING (session, rank),
         (VALUES ('D.recomputed'), ('D.tail')) v(leaf)
    WHERE g.leaf IN ('D.partial', 'B.hang') AND e.log_interval > 1 AND g.stop_ns > g.start_ns
    UNION ALL
    -- a start that never trained may have hung, or been dead before that was seen
    SELECT g.session, g.rank, v.leaf, CASE WHEN v.leaf = 'C.model' THEN g.stop_ns - g.start_ns ELSE 0 END,
           CASE WHEN v.leaf = 'C.model' THEN 0 ELSE g.stop_ns - g.start_ns END, 'start that never trained'
    FROM tail_segments g JOIN ends e USING (session, rank),
         (VALUES ('C.model'), ('C.data'), ('C.load'), ('C.rendezvous'), ('B.hang'), ('B.teardown')) v(leaf)
    WHERE g.leaf = 'C.model' AND NOT e.completed AND g.stop_ns > g.start_ns
    UNION ALL
    -- an end that only the next start shows: the next launch may have begun before its first sign
    SELECT g.session, g.rank, 'C.launch', 0, g.stop_ns - g.start_ns, 'end seen by the next start'
    FROM rank_segments g JOIN sessions s USING (session) JOIN sessions n ON n.ord = s.ord + 1
    WHERE n.start_ns = s.end_ns AND NOT s.completed
      AND (g.kind = 'end' OR g.leaf = 'D.partial') AND g.stop_ns > g.start_ns
    UNION ALL
    -- spans whose end was never seen
    SELECT g.session, g.rank, v.leaf, CASE WHEN v.leaf = g.leaf THEN g.stop_ns - g.start_ns ELSE 0 END,
           CASE WHEN v.leaf = g.leaf THEN 0 ELSE g.stop_ns - g.start_ns END, 'span without an end'
    FROM rank_segments g JOIN span_rows p USING (process_id, seq),
         (SELECT unnest(CASE g.leaf
              -- steps that nothing was saved of: lost, whatever they were
              WHEN 'D.partial' THEN ['D.partial', 'D.recomputed', 'C.warmup', 'U.unaccounted', 'B.teardown', 'B.hang']
              ELSE [g.leaf, 'U.unaccounted', 'G.host', 'G.data', 'B.teardown', 'B.hang', 'D.partial', 'C.model'] END) AS leaf) v
    WHERE g.kind = 'span' AND p.open_end
),
ranked AS (
    SELECT leaf, sum(down::HUGEINT * m.weight) AS down, sum(up::HUGEINT * m.weight) AS up, why
    FROM segment_doubts JOIN members m USING (session, rank) GROUP BY leaf, why
),
silent AS (
    -- a session whose end nothing tells may have lived on into the gap after it
    SELECT g.leaf, sum(g.stop_ns - g.start_ns)::HUGEINT AS ns
    FROM slot_gaps g JOIN sessions a ON a.session = g.session
    JOIN sessions b ON b.ord = a.ord - 1 AND NOT b.end_known
    WHERE g.leaf IN ('C.launch', 'A.requeue') GROUP BY g.leaf
)
SELECT leaf, down::DECIMAL(38, 0) AS down, up::DECIMAL(38, 0) AS up, why FROM ranked
UNION ALL
SELECT v.leaf, CASE WHEN v.leaf = s.leaf THEN s.ns ELSE 0 END,
       CASE WHEN v.leaf = s.leaf THEN 0 ELSE s.ns END, 'end of a session not seen'
FROM silent s, (SELECT unnest([s.leaf, 'D.partial', 'B.hang', 'B.teardown']) AS leaf) v
UNION ALL
-- steps after the last durable checkpoint of a run that may have broken off
SELECT v.leaf, CASE WHEN v.leaf = 'D.tail' THEN 0 ELSE v.ns END,
       CASE WHEN v.leaf = 'D.tail' THEN v.ns ELSE 0 END, 'end of the run not seen'
FROM at_risk v
UNION ALL
-- what a write beside the steps or a held clock seems to have cost may have had another cause
SELECT v.leaf, CASE WHEN v.leaf = l.leaf THEN l.ns ELSE 0 END, CASE WHEN v.leaf = l.leaf THEN 0 ELSE l.ns END,
       'cause of slow steps'
FROM leaves l, (SELECT unnest([l.leaf, 'H.productive', 'U.unaccounted']) AS leaf) v
WHERE l.leaf IN ('E.interference', 'G.throttle')
