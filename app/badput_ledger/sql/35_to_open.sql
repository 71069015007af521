-- Stretches that cannot be booked as a whole and why: their rows are read again and looked at one
-- by one, so this view is empty once the books are open.
-- rows: asked once
WITH slow AS (SELECT session, min(b_ns) AS b_ns FROM stage_usual GROUP BY session),
whole AS (  -- where steps are held against each other one by one
    SELECT session, 'pipeline stages' AS why FROM members GROUP BY session HAVING max(stages) >= 2
    UNION ALL SELECT DISTINCT session, 'writes beside the steps' FROM writes
    UNION ALL SELECT DISTINCT m.session, 'clocks held down'
    FROM gpu_samples g JOIN members m USING (gpu_uuid) WHERE g.throttle_names <> ''
    UNION ALL SELECT DISTINCT m.session, 'collectives' FROM collectives c JOIN members m USING (process_id)
),
unsure AS (  -- spans that end with the next step, or are left out for it
    SELECT p.session, p.rank, p.start_ns, coalesce(r.start_ns, 9223372036854775807) AS next_ns
    FROM (SELECT m.session, m.rank, p.start_ns FROM spans p JOIN members m USING (process_id)
          LEFT JOIN span_leaves l ON l.name = p.name
          WHERE NOT p.in_step AND (p.dur_ns IS NULL OR l.leaf IS NULL)) p
    ASOF LEFT JOIN step_rows r
      ON r.session = p.session AND r.rank = p.rank AND r.start_ns >= p.start_ns
),
reasons AS (
    SELECT process_id, seq, 'another fact in its time' AS why FROM ordered WHERE stretch AND NOT alone
    UNION ALL
    SELECT t.process_id, t.seq, 'outside its session' FROM stretch_rows t JOIN sessions s USING (session)
    WHERE t.from_ns < s.start_ns OR t.stop_ns > s.end_ns
    UNION ALL
    SELECT t.process_id, t.seq, 'first step after a span'
    FROM unsure u ASOF JOIN stretch_rows t
      ON t.session = u.session AND t.rank = u.rank AND t.last_start_ns >= u.start_ns
    WHERE t.start_ns < u.next_ns
    UNION ALL
    SELECT process_id, seq, 'different fates' FROM stretch_fates WHERE fate IS NULL
    UNION ALL
    SELECT t.process_id, t.seq, 'an update that did not happen'
    FROM skips k JOIN stretch_rows t ON t.session = k.session AND k.step > t.before_step AND k.step <= t.step
    UNION ALL
    SELECT process_id, seq, 'partly at risk' FROM stretch_fates
    WHERE at_risk_after > before_step AND at_risk_after < step
    UNION ALL
    SELECT t.process_id, t.seq, 'warm-up' FROM stretch_rows t JOIN usual u USING (session)
    WHERE u.b_ns IS NOT NULL AND coalesce(t.before_step < u.first_usual_step, true)
    UNION ALL
    SELECT t.process_id, t.seq, 'a slow step' FROM stretch_rows t JOIN slow s USING (session)
    WHERE t.longest_ns > 3 * s.b_ns
    UNION ALL
    SELECT t.process_id, t.seq, 'an instant to divide at'
    FROM stretches t JOIN instants i ON i.at_ns > t.from_ns AND i.at_ns < t.stop_ns
    UNION ALL
    SELECT t.process_id, t.seq, w.why FROM stretch_rows t JOIN whole w USING (session)
)
SELECT t.process_id, t.seq, t.steps, min(r.why) AS why
FROM reasons r JOIN stretches t USING (process_id, seq) GROUP BY t.process_id, t.seq, t.steps
