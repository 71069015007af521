-- Walk back from the last session of every tree: which sessions the final model descends
-- from, and up to which step each of them counts.
WITH RECURSIVE roots AS (
    SELECT session, session AS root FROM parents WHERE parent IS NULL
    UNION ALL
    SELECT p.session, r.root FROM parents p JOIN roots r ON p.parent = r.session
),
path AS (
    SELECT p.session, p.parent, p.resumed_from, r.root, NULL::BIGINT AS cut
    FROM parents p JOIN roots r USING (session)
    WHERE p.ord = (SELECT max(q.ord) FROM parents q JOIN roots o USING (session)
                   WHERE o.root = r.root)
    UNION ALL
    SELECT p.session, p.parent, p.resumed_from, h.root,
           least(h.resumed_from, coalesce(h.cut, h.resumed_from))
    FROM parents p JOIN path h ON p.session = h.parent
)
SELECT p.session, p.ord, p.parent, p.because, p.resumed_from, r.root,
       h.session IS NOT NULL AS on_path, h.cut,
       p.ord = max(p.ord) OVER () AS is_last
FROM parents p JOIN roots r USING (session) LEFT JOIN path h USING (session)
