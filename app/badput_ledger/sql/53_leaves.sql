-- The books: nanoseconds by leaf. They sum to the total of `allocations`.
SELECT leaf, sum(ns)::DECIMAL(38, 0) AS ns, sum(billed_ns)::DECIMAL(38, 0) AS billed_ns
FROM session_leaves GROUP BY leaf ORDER BY leaf
