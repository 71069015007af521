-- Tokens that each rank tells by fate. Of a replica's ranks, which work on the same tokens, odd says that they disagree.
WITH told AS (
    SELECT session, replica, rank, fate, sum(tokens)::BIGINT AS tokens, sum(padding)::BIGINT AS padding
    FROM step_sums WHERE fate <> 'D.partial' GROUP BY ALL HAVING sum(tokens) IS NOT NULL
),
ranks AS (SELECT session, replica, count(DISTINCT rank) AS ranks FROM told GROUP BY ALL),
alike AS (
    SELECT session, replica, bool_or(many <> ranks OR least <> most) AS odd
    FROM (SELECT session, replica, fate, count(*) AS many, min(tokens) AS least, max(tokens) AS most
          FROM told GROUP BY ALL) JOIN ranks USING (session, replica)
    GROUP BY ALL
)
SELECT t.*, r.ranks, a.odd
FROM told t JOIN ranks r USING (session, replica) JOIN alike a USING (session, replica)
