-- A shop's tables in PostgreSQL, followed by logical replication, and three levels of views on them, each kept in another target.
--
-- The environment says where: SHOP_URL and SHOP_PASSWORD of PostgreSQL, KAFKA of a broker, LAKE of a folder.

CREATE STREAM customer_changes USING postgres
    OPTIONS (url '${env:SHOP_URL}', password '${env:SHOP_PASSWORD}', table 'customers');
CREATE STREAM order_changes USING postgres
    OPTIONS (url '${env:SHOP_URL}', password '${env:SHOP_PASSWORD}', table 'orders');
CREATE STREAM line_changes USING postgres
    OPTIONS (url '${env:SHOP_URL}', password '${env:SHOP_PASSWORD}', table 'order_lines');

-- The tables as they are now.
CREATE FLOW customers_flow AS AUTO CDC INTO customers FROM STREAM(customer_changes)
    KEYS (id) APPLY AS DELETE WHEN _op = 'delete' SEQUENCE BY _seq
    COLUMNS * EXCEPT (_op, _seq, _lsn, _committed_at);
CREATE FLOW orders_flow AS AUTO CDC INTO orders FROM STREAM(order_changes)
    KEYS (id) APPLY AS DELETE WHEN _op = 'delete' SEQUENCE BY _seq
    COLUMNS * EXCEPT (_op, _seq, _lsn, _committed_at);
CREATE FLOW lines_flow AS AUTO CDC INTO order_lines FROM STREAM(line_changes)
    KEYS (order_id, line) APPLY AS DELETE WHEN _op = 'delete' SEQUENCE BY _seq
    COLUMNS * EXCEPT (_op, _seq, _lsn, _committed_at);

-- Three levels of views. The same queries also run in PostgreSQL.
CREATE VIEW order_totals AS
SELECT order_id, count(*) AS items, CAST(sum(amount * cents) AS BIGINT) AS cents
FROM order_lines
GROUP BY order_id;

CREATE VIEW countries AS
SELECT
    c.country,
    count(*) AS orders,
    CAST(sum(t.cents) AS BIGINT) AS cents,
    max(t.cents) AS largest
FROM orders AS o
JOIN customers AS c ON c.id = o.customer
JOIN order_totals AS t ON t.order_id = o.id
WHERE o.status <> 'cancelled'
GROUP BY c.country;

CREATE VIEW best_countries AS
SELECT country, place, cents
FROM (SELECT country, cents, rank() OVER (ORDER BY cents DESC) AS place FROM countries) AS ranked
WHERE place <= 5;

CREATE SINK order_totals_to_lake FROM order_totals USING delta
    OPTIONS (path '${env:LAKE}/order_totals');
CREATE SINK countries_to_kafka FROM countries USING kafka
    OPTIONS (bootstrap_servers '${env:KAFKA}', topic 'countries', envelope 'upsert');
CREATE SINK best_countries_to_postgres FROM best_countries USING postgres
    OPTIONS (url '${env:SHOP_URL}', password '${env:SHOP_PASSWORD}', table 'best_countries');
