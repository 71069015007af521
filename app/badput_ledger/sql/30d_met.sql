-- Collectives that every rank of their group entered and left (rule 7), by step row: how long each
-- rank waited in them for the last one, and its own busy time above the stage's lower median.
WITH calls AS (
    SELECT m.session, m.rank, c.process_id, c.step, c.name, c.group_id, c.start_ns, c.dur_ns,
           row_number() OVER (PARTITION BY c.process_id, c.step, c.name, c.group_id
                              ORDER BY c.start_ns, c.seq, c.number) AS nth
    FROM collectives c JOIN members m USING (process_id)
    WHERE c.step IS NOT NULL AND c.name NOT IN ('send', 'recv', 'isend', 'irecv', 'batch_isend_irecv',
                                                'send_object_list', 'recv_object_list')
),
teams AS (SELECT session, name, group_id, count(DISTINCT rank) AS ranks FROM calls GROUP BY ALL),
least_of AS (
    SELECT c.session, c.step, c.name, c.group_id, c.nth, min(c.dur_ns) AS least_ns
    FROM calls c JOIN teams t ON t.session = c.session AND t.name = c.name
         AND t.group_id IS NOT DISTINCT FROM c.group_id
    GROUP BY c.session, c.step, c.name, c.group_id, c.nth
    HAVING any_value(t.ranks) >= 2 AND count(c.dur_ns) = any_value(t.ranks) AND count(*) = any_value(t.ranks)
),
waited AS (
    SELECT c.process_id, c.start_ns, c.start_ns + c.dur_ns AS stop_ns, greatest(c.dur_ns - l.least_ns, 0) AS ns
    FROM calls c JOIN least_of l ON l.session = c.session AND l.step = c.step AND l.name = c.name
         AND l.group_id IS NOT DISTINCT FROM c.group_id AND l.nth = c.nth
),
-- Of several steps that began at one instant, the last: those before it took no time.
begun AS (
    SELECT w.*, r.start_ns AS begun_ns FROM waited w ASOF JOIN step_time r
      ON r.process_id = w.process_id AND r.start_ns <= w.start_ns
),
ties AS (
    SELECT r.process_id, r.start_ns, arg_max(r.seq, (r.stop_ns, r.seq)) AS seq
    FROM step_time r SEMI JOIN begun b ON b.process_id = r.process_id AND b.begun_ns = r.start_ns
    GROUP BY r.process_id, r.start_ns
),
placed AS (
    SELECT r.session, r.process_id, r.seq, r.step, coalesce(r.stage, -1) AS stage, r.plain_ns,
           sum(w.ns)::BIGINT AS waited_ns
    FROM begun w JOIN ties t ON t.process_id = w.process_id AND t.start_ns = w.begun_ns
    JOIN step_time r ON r.process_id = t.process_id AND r.seq = t.seq
    WHERE w.stop_ns <= r.stop_ns AND r.n_steps = 1
    GROUP BY ALL
)
SELECT process_id, seq, waited_ns,
       greatest(plain_ns - quantile_disc(plain_ns, 0.5) OVER (PARTITION BY session, stage, step), 0) AS own_ns
FROM placed
