-- Where each rank's known time line stops, and how what follows is divided (rule 6):
-- the step under way, no progress until someone noticed, teardown until the last exit.
WITH last AS (
    SELECT session, rank, max(stop_ns) AS stop_ns FROM line GROUP BY session, rank
),
known AS (
    SELECT m.session, m.rank, m.process_id, m.phase, m.last_sign_ns, s.end_ns, s.completed, s.end_known,
           greatest(coalesce(l.stop_ns, s.start_ns), s.start_ns) AS from_ns,
           least(greatest(coalesce(s.fail_ns, s.end_ns), coalesce(l.stop_ns, s.start_ns)), s.end_ns)
               AS noticed_ns,
           m.death_ns, k.first_start_ns IS NOT NULL AS stepped,
           u.rough_ns * greatest(coalesce(k.log_interval, 1), 1) AS usual_ns, s.sign_ns,
           coalesce(k.log_interval, 1) AS log_interval
    FROM members m JOIN sessions s USING (session) LEFT JOIN last l USING (session, rank)
    LEFT JOIN rank_steps k USING (session, rank) LEFT JOIN usual u USING (session)
)
SELECT *, CASE WHEN completed OR NOT end_known OR NOT stepped THEN from_ns
               ELSE least(noticed_ns, greatest(least(from_ns + greatest(coalesce(usual_ns, 0), 0),
                                                  greatest(from_ns, coalesce(sign_ns, noticed_ns))),
                          least(coalesce(last_sign_ns, from_ns), noticed_ns))) END AS partial_ns
FROM known
