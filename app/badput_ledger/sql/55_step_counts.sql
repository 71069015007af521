-- Steps by session and fate, counted on the rank that reported most of them.
WITH lead AS (
    SELECT session, arg_max(rank, (steps, -rank)) AS rank FROM rank_steps GROUP BY session
)
SELECT s.session, s.fate, sum(s.steps)::BIGINT AS steps
FROM step_sums s JOIN lead l USING (session, rank) WHERE s.fate <> 'D.partial'
GROUP BY s.session, s.fate
