-- Web statistics over raw access log lines, for every site and day.
--
-- Input: log_lines(line STRING, seq BIGINT). `line` is an unmodified line of the log, in the
-- common, the combined or the vhost_combined format; `seq` is a unique number of the line (its position
-- in the log): it only orders requests of the same second.
--
-- Terms:
--   site     the virtual host of the vhost_combined format, without its port; '-' if the log has none
--   day      the calendar day by the clock of the log (its own UTC offset): all daily figures start
--            from zero at 00:00
--   visitor  a host (the first column of the log, a name or an address)
--   visit    a series of a visitor's requests on one site and day; a pause of more than 1,800 s begins a
--            new visit
--
-- Lines that can't be parsed are kept in malformed_lines. No line, whatever it holds, makes a view fail.

-- Every line, parsed once: the columns of webstats/log_formats.py. A malformed line, or one with an
-- impossible date, has ts = NULL.
CREATE VIEW parsed_lines AS
{parsed_lines};

-- The well-formed requests. A page is a successful request of a visitor, without the images, styles and
-- downloads that belong to it.
CREATE VIEW requests AS
SELECT
  seq,
  site,
  CAST(convert_timezone('UTC', zone, timestampadd(MICROSECOND, unix_micros(ts), TIMESTAMP_NTZ '1970-01-01')) AS DATE) AS day,
  ts,
  host,
  user AS login,
  method,
  path,
  status,
  bytes,
  coalesce(referer, '') AS referer,
  coalesce(agent, '') AS agent,
  method IN ('GET', 'POST')
    AND status < 400
    AND NOT regexp_like(path, r'(?i)^[^?]*\.(gif|jpe?g|png|bmp|ico|xbm|svg|webp|css|js|map|ttf|woff2?|eot|swf|mpe?g|mp[34]|avi|wav|pdf|zip|t?gz)(\?|$)')
    AS is_page
FROM parsed_lines
WHERE ts IS NOT NULL;

-- The malformed lines, unmodified.
CREATE VIEW malformed_lines AS
SELECT seq, line FROM parsed_lines WHERE ts IS NULL;

CREATE VIEW malformed_count AS
SELECT count(*) AS malformed FROM malformed_lines;

-- Each request with the seconds since the visitor's previous one, and whether it is the first or the
-- last of a visit.
CREATE VIEW steps AS
SELECT
  site, day, host, seq, bytes, is_page,
  gap_s,
  coalesce(gap_s > 1800, true) AS enters,
  coalesce(next_gap_s > 1800, true) AS leaves
FROM (
  SELECT
    site, day, host, seq, bytes, is_page,
    unix_seconds(ts) - lag(unix_seconds(ts)) OVER visitor AS gap_s,
    lead(unix_seconds(ts)) OVER visitor - unix_seconds(ts) AS next_gap_s
  FROM requests
  WINDOW visitor AS (PARTITION BY site, day, host ORDER BY ts, seq)
);

-- First level: per visitor and day.
CREATE VIEW visitor_days AS
SELECT
  site, day, host,
  count(*) AS pv,
  count_if(is_page) AS page_pv,
  sum(bytes) AS bytes,
  count_if(enters) AS visits,
  count_if(enters AND leaves) AS bounces,
  sum(CASE WHEN enters THEN 0 ELSE gap_s END) AS visit_seconds
FROM steps
GROUP BY site, day, host;

-- Second level: the basic statistics per site and day. ips counts the visitors that the log gives by
-- address, not by name.
CREATE VIEW daily_basic AS
SELECT
  site, day,
  sum(pv) AS pv,
  sum(page_pv) AS page_pv,
  count(*) AS uv,
  count_if(regexp_like(host, r'^[0-9]+\.[0-9]+\.[0-9]+\.[0-9]+$|:')) AS ips,
  sum(bytes) AS bytes,
  sum(visits) AS visits,
  sum(bounces) AS bounces,
  sum(visit_seconds) AS visit_seconds
FROM visitor_days
GROUP BY site, day;

-- Visitors with more than one visit on the day.
CREATE VIEW returning_visitors AS
SELECT site, day, count(*) AS returning_visitors
FROM visitor_days
WHERE visits > 1
GROUP BY site, day;

-- Visitors that the site has not seen on any earlier day.
CREATE VIEW new_visitors AS
SELECT site, first_day AS day, count(*) AS new_visitors
FROM (
  SELECT site, host, min(day) AS first_day
  FROM visitor_days
  GROUP BY site, host
)
GROUP BY site, first_day;

-- The basic statistics with the returning and the new visitors, and ratios of them.
CREATE VIEW daily_statistics AS
SELECT
  b.site, b.day,
  b.pv, b.page_pv, b.uv, b.ips, b.bytes, b.visits, b.bounces, b.visit_seconds,
  coalesce(r.returning_visitors, 0) AS returning_visitors,
  coalesce(n.new_visitors, 0) AS new_visitors,
  round(b.visits / b.uv, 6) AS visit_frequency,
  round(b.visit_seconds / b.visits, 6) AS average_duration_s,
  round(b.pv / b.visits, 6) AS average_depth,
  round(b.pv / b.uv, 6) AS pages_per_visitor
FROM daily_basic b
LEFT JOIN returning_visitors r ON b.site = r.site AND b.day = r.day
LEFT JOIN new_visitors n ON b.site = n.site AND b.day = n.day;

CREATE VIEW status_counts AS
SELECT site, day, status, count(*) AS requests, sum(bytes) AS bytes
FROM requests
GROUP BY site, day, status;

CREATE VIEW page_counts AS
SELECT site, day, path, count(*) AS requests
FROM requests
GROUP BY site, day, path;

-- The top pages and hosts of the whole log.
CREATE VIEW top_pages AS
SELECT site, path, sum(requests) AS requests
FROM page_counts
GROUP BY site, path
ORDER BY requests DESC, site, path
LIMIT 10;

CREATE VIEW top_hosts AS
SELECT host, sum(pv) AS requests, sum(visits) AS visits
FROM visitor_days
GROUP BY host
ORDER BY requests DESC, host
LIMIT 10;

-- The top pages per site and day.
CREATE VIEW top_pages_of_day AS
SELECT site, day, rank, path, requests
FROM (
  SELECT *, row_number() OVER (PARTITION BY site, day ORDER BY requests DESC, path) AS rank
  FROM page_counts
)
WHERE rank <= 5;
