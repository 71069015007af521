-- The cut: for each session the last step that counts and the leaf of those after it.
-- Joined to the step rows in one scan; no window over them decides what is kept.
WITH base AS (
    SELECT s.session, s.ord, r.resumed_from, r.first_step, r.completed_upto, l.on_path, l.parent,
           l.because, l.is_last,
           CASE WHEN NOT l.on_path THEN r.first_step - 1
                ELSE least(r.completed_upto, coalesce(l.cut, r.completed_upto)) END AS upto,
           NOT l.on_path AND EXISTS (
               SELECT 1 FROM saves v WHERE v.session = s.session AND v.durable
               AND v.step > r.resumed_from) AS branch,
           EXISTS (SELECT 1 FROM rewinds w WHERE w.declared AND w.to_step = l.cut
                   AND w.session = s.session) AS declared
    FROM sessions s JOIN resumes r USING (session) LEFT JOIN lineage l USING (session)
)
SELECT b.session, b.ord, b.parent, b.because, b.resumed_from, b.first_step, b.completed_upto,
       coalesce(b.on_path, false) AS on_path,
       CASE WHEN t.known THEN least(b.upto, greatest(t.durable_step, b.first_step - 1))
            ELSE b.upto END AS kept_upto,
       CASE WHEN t.known THEN 'D.tail' WHEN b.declared THEN 'D.rewind'
            WHEN b.branch THEN 'D.branch' ELSE 'D.recomputed' END AS lost_leaf,
       CASE WHEN NOT t.known THEN greatest(t.durable_step, b.first_step - 1) END AS at_risk_after
FROM base b LEFT JOIN tails t USING (session)
