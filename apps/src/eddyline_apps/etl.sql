-- The live views of the log ETL.
--
-- Inputs: the stream visits, written by the pipeline `etl`: parsed lines of the access log, with region
-- and carrier of their hosts; and etl__dead, its dead letters.

-- The same text also runs in PostgreSQL.
CREATE VIEW hits AS
SELECT region, carrier, count(*) AS hits, CAST(sum(bytes) AS BIGINT) AS bytes
FROM visits
GROUP BY region, carrier;

CREATE VIEW failures AS
SELECT bolt, error, count(*) AS records
FROM etl__dead
GROUP BY bolt, error;
