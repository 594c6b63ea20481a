-- The views of `eddyline guard` about regions and carriers, if the configuration names a file of `places`.
--
-- Table that the command writes:
--   places(network, bits, bucket, first_key, last_key, region, carrier)  the file; keys as in offenders, bucket: the
--            first octet of IPv4, the first group of IPv6

-- Where each network is: by the longest prefix that holds it.
CREATE VIEW network_places AS
SELECT network, coalesce(max(place).region, 'unknown') AS region, coalesce(max(place).carrier, 'unknown') AS carrier
FROM (
  SELECT n.network, struct(p.bits, p.region, p.carrier) AS place
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

-- Who reaches the site: the newest window of 5 minutes that is at least half over, beside the mean of all earlier ones that
-- are kept. Quiet: less than a tenth of at least 20 requests that are usual; change it to your needs.
CREATE VIEW reach AS
SELECT *, coalesce(usual >= 20 AND requests < 0.1 * usual, false) AS quiet
FROM (
  SELECT
    r.region, r.carrier,
    coalesce(sum(CASE WHEN r.window_start = n.window_start THEN r.requests END), 0) AS requests,
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
);
