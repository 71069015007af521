-- Tokens by session and fate: the greatest count among a replica's ranks, over replicas.
WITH replicas AS (
    SELECT session, replica, fate, max(tokens) AS tokens, max(padding) AS padding
    FROM step_sums WHERE fate <> 'D.partial' GROUP BY session, replica, fate
)
SELECT session, fate, sum(tokens)::BIGINT AS tokens, sum(padding)::BIGINT AS padding
FROM replicas GROUP BY session, fate
