-- Orders of a topic, three live views, and a table of PostgreSQL that follows one of them.
CREATE STREAM IF NOT EXISTS orders (id BIGINT, country STRING, cents BIGINT, at TIMESTAMP)
USING kafka OPTIONS (kafka.bootstrap.servers 'kafka:9092', subscribe 'orders', value.format 'json');

CREATE OR REPLACE VIEW by_country AS
SELECT country, count(*) AS orders, sum(cents) AS cents FROM orders GROUP BY country;

CREATE OR REPLACE VIEW by_hour AS
SELECT date_trunc('hour', at) AS hour, count(*) AS orders, sum(cents) AS cents FROM orders GROUP BY 1;

CREATE OR REPLACE VIEW top3 AS
SELECT country, cents FROM by_country ORDER BY cents DESC LIMIT 3;

CREATE SINK IF NOT EXISTS to_postgres FROM by_country USING postgres OPTIONS (
    url 'postgresql://eddyline@postgres:5432/shop', password '${file:/run/secrets/postgres_password}',
    table 'by_country');
