-- Tokens by session and fate, each replica once: those of `token_carriers`. Padding is that of kept steps, inside their tokens.
SELECT session, fate, sum(tokens)::BIGINT AS tokens, sum(padding)::BIGINT AS padding
FROM token_carriers GROUP BY session, fate
