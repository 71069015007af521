-- Booked against allocated nanoseconds of each place; fsck wants them equal.
WITH booked AS (
    SELECT p.slot, sum(l.ns) AS ns
    FROM slots p JOIN rank_leaves l ON l.session = p.session AND l.rank = p.rank GROUP BY p.slot
),
gaps AS (SELECT slot, sum(stop_ns - start_ns) AS ns FROM slot_gaps GROUP BY slot),
given AS (SELECT slot, sum(end_ns - start_ns) AS ns FROM allocations GROUP BY slot)
SELECT slot, (coalesce(b.ns, 0) + coalesce(g.ns, 0))::DECIMAL(38, 0) AS booked_ns,
       a.ns::DECIMAL(38, 0) AS allocated_ns
FROM given a LEFT JOIN booked b USING (slot) LEFT JOIN gaps g USING (slot)
