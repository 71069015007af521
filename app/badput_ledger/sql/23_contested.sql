-- Overlaps resolved: each instant goes to the innermost interval; where neither holds the
-- other, to the group that comes first (A before B ... before U).
WITH islands AS (
    SELECT *, sum(opens::INTEGER) OVER (PARTITION BY session, rank
              ORDER BY start_ns, stop_ns, seq ROWS UNBOUNDED PRECEDING) AS island
    FROM ordered WHERE NOT alone
),
edges AS (
    SELECT session, rank, island, start_ns AS at_ns FROM islands
    UNION SELECT session, rank, island, stop_ns FROM islands
),
pieces AS (
    SELECT session, rank, island, at_ns AS start_ns,
           lead(at_ns) OVER (PARTITION BY session, rank, island ORDER BY at_ns) AS stop_ns
    FROM edges
),
covering AS (
    SELECT p.session, p.rank, p.island, p.start_ns, p.stop_ns, i.is_step, i.process_id, i.seq,
           i.leaf, i.level, i.start_ns AS a, i.stop_ns AS b
    FROM pieces p JOIN islands i USING (session, rank, island)
    WHERE i.start_ns <= p.start_ns AND i.stop_ns >= p.stop_ns
),
inner_most AS (
    SELECT * FROM covering c WHERE NOT EXISTS (
        SELECT 1 FROM covering o
        WHERE o.session = c.session AND o.rank = c.rank AND o.island = c.island
          AND o.start_ns = c.start_ns AND o.a >= c.a AND o.b <= c.b AND (o.a > c.a OR o.b < c.b))
),
won AS (
    SELECT *, row_number() OVER (PARTITION BY session, rank, island, start_ns
                                 ORDER BY level, a DESC, seq, process_id) AS place
    FROM inner_most
)
SELECT w.session, w.rank, w.is_step, w.process_id, w.seq, w.leaf, w.start_ns, w.stop_ns,
       -- the gap before the island belongs to its first piece
       CASE WHEN w.start_ns = f.start_ns THEN f.before_ns ELSE w.start_ns END AS before_ns
FROM won w JOIN (SELECT session, rank, island, min(start_ns) AS start_ns, min(before_ns) AS before_ns
                 FROM islands WHERE opens GROUP BY ALL) f USING (session, rank, island)
WHERE w.place = 1
