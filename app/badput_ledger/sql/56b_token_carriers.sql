-- Tokens of each replica by fate, whose number counts, and the least that any of its ranks told: at each step the greatest;
-- where rows hold several steps or are summed in stretches, ranks have no common step, and the greatest sum counts.
WITH told AS (
    SELECT session, replica, fate, step, rank, max(n_steps) AS n, sum(tokens) AS tokens, sum(padding) AS padding
    FROM divided SEMI JOIN (FROM token_told WHERE odd) USING (session, replica)
    WHERE fate <> 'D.partial' AND tokens IS NOT NULL AND NOT EXISTS (FROM stretches) GROUP BY ALL
),
best AS (
    SELECT session, replica, fate, max(n) AS n, max(tokens) AS tokens, min(tokens) AS least,
           arg_max(rank, (tokens, -rank)) AS rank,
           arg_max(padding, (tokens, -rank)) FILTER (WHERE padding <= tokens) AS padding
    FROM told GROUP BY session, replica, fate, step
),
by_step AS (
    SELECT session, replica, fate, max(n) AS n, mode(rank) AS rank, sum(tokens)::BIGINT AS tokens,
           sum(padding)::BIGINT AS padding, sum(least)::BIGINT AS least
    FROM best GROUP BY session, replica, fate
),
stepwise AS (SELECT session, replica FROM by_step GROUP BY ALL HAVING max(n) = 1),
-- of those that tell most, one that knows its padding; who says nothing of a fate did not see its steps
by_sum AS (
    SELECT session, replica, fate, arg_max(rank, (tokens, padding IS NOT NULL, -rank)) AS rank,
           max(tokens) AS tokens,
           arg_max(coalesce(padding, -1), (tokens, padding IS NOT NULL, -rank)) AS padding,
           CASE WHEN count(*) = max(ranks) THEN min(tokens) ELSE 0 END AS least
    FROM token_told ANTI JOIN stepwise USING (session, replica) GROUP BY session, replica, fate
),
counted AS (
    SELECT session, replica, fate, rank, tokens, padding, least FROM by_step SEMI JOIN stepwise USING (session, replica)
    UNION ALL
    SELECT session, replica, fate, rank, tokens, nullif(padding, -1), least FROM by_sum
)
-- padding of kept steps only, and more padding than tokens is no count of padding
SELECT session, replica, fate, rank, tokens,
       CASE WHEN fate = 'kept' AND padding <= tokens THEN padding END AS padding, least
FROM counted
