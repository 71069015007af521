-- Stretches with their session: consecutive step rows of one rank with nothing special between
-- them, summed. Each lasts from the end of the row before it to the end of its last row.
SELECT m.session, m.rank, m.stage, m.replica, t.* EXCLUDE (rank)
FROM stretches t JOIN members m USING (process_id)
