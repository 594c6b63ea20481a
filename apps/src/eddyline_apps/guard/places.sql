-- The views of `eddyline guard` about regions and carriers, if the configuration names a file of `places`.
--
-- Tables that the command writes:
--   place_history(slot_start, region, carrier, requests)  requests in 5 minutes; old rows are deleted
--   places(network, bits, bucket, first_key, last_key, region, carrier)  the files; keys as in offenders, bucket: of
--            a /24, or /48 of IPv6, its first key; of others the first octet, or the first group of IPv6

-- Where each network is: by the longest prefix that holds it.
CREATE VIEW network_places AS
SELECT network, coalesce(max(place).region, 'unknown') AS region, coalesce(max(place).carrier, 'unknown') AS carrier
FROM (
  SELECT n.network, struct(p.bits, p.region, p.carrier) AS place
  FROM (
    SELECT network, first_key, explode(array(bucket, first_key)) AS bucket
    FROM (
      SELECT
        network,
        CASE WHEN network LIKE '%.%' THEN split_part(network, '.', 1) ELSE lpad(split_part(network, ':', 1), 4, '0') END AS bucket,
        CASE
          WHEN network LIKE '%.%' THEN concat(repeat('0', 20), 'ffff', array_join(
            transform(split(split_part(network, '/', 1), r'\.'), part -> lpad(lower(hex(CAST(part AS INT))), 2, '0')), ''))
          ELSE concat(array_join(transform(split(split_part(network, '::', 1), ':'), part -> lpad(part, 4, '0')), ''), repeat('0', 20))
        END AS first_key
      FROM (SELECT DISTINCT network FROM network_rates WHERE window_s = 300)
    )
  ) n
  LEFT JOIN places p ON p.bucket = n.bucket AND p.first_key <= n.first_key AND n.first_key <= p.last_key
)
GROUP BY network;

-- Requests of each region and carrier in windows of 1 and 5 minutes, with the share of errors and the mean latency.
CREATE VIEW place_rates AS
SELECT
  window_s, window_start, region, carrier, requests, visitors, addresses,
  round(errors / requests, 4) AS error_share,
  round(request_s / requests, 6) AS mean_request_s
FROM (
  SELECT
    r.window_s, r.window_start, p.region, p.carrier,
    sum(r.requests) AS requests, sum(r.visitors) AS visitors, sum(r.addresses) AS addresses,
    sum(r.errors) AS errors, sum(r.request_s) AS request_s
  FROM network_rates r
  JOIN network_places p ON p.network = r.network
  WHERE r.window_s IN (60, 300)
  GROUP BY r.window_s, r.window_start, p.region, p.carrier
);

-- What is to be added to the history: each slot of 5 minutes once, when it has been over for 5.
CREATE VIEW learnable_places AS
SELECT r.window_start AS slot_start, r.region, r.carrier, r.requests
FROM place_rates r
CROSS JOIN clock c
LEFT ANTI JOIN place_history h ON h.slot_start = r.window_start AND h.region = r.region AND h.carrier = r.carrier
WHERE r.window_s = 300 AND unix_seconds(r.window_start) % 300 = 0 AND unix_seconds(c.now) >= unix_seconds(r.window_start) + 600;

-- The history, with the day and the hour of each slot in the zone of the configuration.
CREATE VIEW place_hours AS
SELECT slot_start, region, carrier, requests, CAST(local AS DATE) AS day, hour(local) AS hour
FROM (
  SELECT h.*, convert_timezone('UTC', z.name,
    timestampadd(MICROSECOND, unix_micros(h.slot_start), TIMESTAMP_NTZ '1970-01-01 00:00:00')) AS local
  FROM place_history h
  CROSS JOIN (SELECT coalesce(max(name), 'UTC') AS name FROM zone) z
);

-- The days of which an hour is known since the place was first seen; on those on which it wasn't seen then it made no requests.
CREATE VIEW place_days AS
SELECT f.region, f.carrier, d.hour, d.days
FROM (SELECT region, carrier, min(day) AS first_day FROM place_hours GROUP BY region, carrier) f
JOIN (
  SELECT f.day AS first_day, h.hour, count(*) AS days
  FROM (SELECT DISTINCT day FROM place_hours) f
  JOIN (SELECT DISTINCT day, hour FROM place_hours) h ON h.day >= f.day
  GROUP BY f.day, h.hour
) d ON d.first_day = f.first_day;

-- Requests in 5 minutes that are usual at an hour of the day: the median of its days, if there are at least three. From the
-- most requests to the least, with 0 after those of the days on which the place was seen, it is in the middle.
CREATE VIEW place_baselines AS
SELECT
  d.region, d.carrier, d.hour, d.days AS learnt_days,
  round((coalesce(get(p.most, CAST((d.days - 1) DIV 2 AS INT)), 0) + coalesce(get(p.most, CAST(d.days DIV 2 AS INT)), 0)) / 2, 1) AS usual
FROM place_days d
LEFT JOIN (
  SELECT p.region, p.carrier, p.hour, sort_array(array_agg(p.requests / s.slots), false) AS most
  FROM (SELECT region, carrier, day, hour, sum(requests) AS requests FROM place_hours GROUP BY region, carrier, day, hour) p
  JOIN (SELECT day, hour, count(DISTINCT slot_start) AS slots FROM place_hours GROUP BY day, hour) s
    ON s.day = p.day AND s.hour = p.hour
  GROUP BY p.region, p.carrier, p.hour
) p ON p.region = d.region AND p.carrier = d.carrier AND p.hour = d.hour
WHERE d.days >= 3;

-- Who reaches the site: the newest window of 5 minutes that is at least half over, beside what is usual at this hour of the
-- day; until that is known, beside the mean of all earlier windows that are kept. Quiet: less than a tenth of at least 20 requests that are
-- usual; change it to your needs. A place that makes no requests is left out where that is usual.
CREATE VIEW reach AS
SELECT *, coalesce(usual >= 20 AND requests < 0.1 * usual, false) AS quiet
FROM (
  SELECT
    coalesce(r.region, b.region) AS region, coalesce(r.carrier, b.carrier) AS carrier, coalesce(r.requests, 0) AS requests,
    r.error_share, r.mean_request_s, coalesce(b.usual, r.usual) AS usual, r.last_window
  FROM (
    SELECT
      r.region, r.carrier,
      sum(CASE WHEN r.window_start = n.window_start THEN r.requests END) AS requests,
      max(CASE WHEN r.window_start = n.window_start THEN r.error_share END) AS error_share,
      max(CASE WHEN r.window_start = n.window_start THEN r.mean_request_s END) AS mean_request_s,
      round(coalesce(sum(CASE WHEN r.window_start < n.window_start THEN r.requests END), 0) / max(n.earlier), 1) AS usual,
      max(r.window_start) AS last_window
    FROM place_rates r
    CROSS JOIN (
      SELECT
        timestamp_seconds(unix_seconds(max(window_start)) - 150) AS window_start,
        CAST(nullif(count(*) - 2, 0) AS BIGINT) AS earlier
      FROM server_rates WHERE window_s = 300
    ) n
    WHERE r.window_s = 300 AND r.window_start <= n.window_start
    GROUP BY r.region, r.carrier
  ) r
  FULL JOIN (
    SELECT b.region, b.carrier, b.usual
    FROM place_baselines b
    JOIN (
      SELECT hour(convert_timezone('UTC', z.name,
        timestampadd(MICROSECOND, unix_micros(n.window_start), TIMESTAMP_NTZ '1970-01-01 00:00:00'))) AS hour
      FROM (SELECT timestamp_seconds(unix_seconds(max(window_start)) - 150) AS window_start FROM server_rates WHERE window_s = 300) n
      CROSS JOIN (SELECT coalesce(max(name), 'UTC') AS name FROM zone) z
    ) n ON n.hour = b.hour
  ) b ON b.region = r.region AND b.carrier = r.carrier
  WHERE r.region IS NOT NULL OR b.usual > 0
);
