-- The live views of the log ETL.
--
-- Inputs: visits, which the pipeline `etl` feeds: a parsed line of the access log, with region and
-- carrier of its host; and etl__dead, its dead letters.

-- PostgreSQL is asked the same in the same words.
CREATE VIEW hits AS
SELECT region, carrier, count(*) AS hits, CAST(sum(bytes) AS BIGINT) AS bytes
FROM visits
GROUP BY region, carrier;

CREATE VIEW failures AS
SELECT bolt, error, count(*) AS records
FROM etl__dead
GROUP BY bolt, error;
