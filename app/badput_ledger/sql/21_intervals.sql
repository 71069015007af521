-- Steps, stretches of steps and spans on each rank's time line, cut to the session's window.
-- level: the group's priority where two overlap without one holding the other.
-- rows: many
SELECT r.session, r.rank, true AS is_step, false AS stretch, r.process_id, r.seq, NULL AS leaf, 8 AS level,
       greatest(r.start_ns, s.start_ns) AS start_ns, least(r.stop_ns, s.end_ns) AS stop_ns
FROM step_rows r JOIN sessions s USING (session)
WHERE least(r.stop_ns, s.end_ns) > greatest(r.start_ns, s.start_ns)
UNION ALL
SELECT t.session, t.rank, true, true, t.process_id, t.seq, NULL, 8,
       greatest(t.from_ns, s.start_ns), least(t.stop_ns, s.end_ns)
FROM stretch_rows t JOIN sessions s USING (session)
WHERE least(t.stop_ns, s.end_ns) > greatest(t.from_ns, s.start_ns)
UNION ALL
SELECT p.session, p.rank, false, false, p.process_id, p.seq, p.leaf, strpos('ABCDEFGHU', p.leaf[1]),
       greatest(p.start_ns, s.start_ns), least(p.stop_ns, s.end_ns)
FROM span_rows p JOIN sessions s USING (session)
WHERE least(p.stop_ns, s.end_ns) > greatest(p.start_ns, s.start_ns)
