-- Web statistics over raw access log lines, for every site and day.
--
-- Input: log_lines(line STRING, seq BIGINT). `line` is a line of the log as it was written, in the
-- common, the combined or the vhost_combined format; `seq` is a number of its own for each line (its
-- place in the log): it decides the order of requests that have the same second, nothing else.
--
-- Words used here:
--   site     the virtual host of the vhost_combined format, without its port; '-' where the log has none
--   day      the calendar day by the clock of the log (its own UTC offset): all daily figures begin
--            again from zero at 00:00
--   visitor  a host (the first column of the log, a name or an address)
--   visit    a run of a visitor's requests on one site and day, cut where the time between two of them
--            is more than 1,800 s
--
-- A line that is not understood is never dropped: it is in malformed_lines. No line, whatever it holds,
-- makes a view fail.

-- Every line, read once. A line that does not have the form, or has an impossible date, has ts = NULL.
-- The first branch of the expression takes a good line apart, the second any other line as a whole, so
-- that there are always ten fields. The quantifiers inside quotes are possessive: a line of any length
-- is matched in linear time and constant stack.
CREATE VIEW parsed_lines AS
SELECT
  seq,
  line,
  f[0] AS site,
  f[1] AS host,
  nullif(f[3], '-') AS login,
  f[4] AS stamp,
  try_to_timestamp(f[4], 'dd/MMM/yyyy:HH:mm:ss Z') AS ts,
  f[5] AS request,
  try_cast(f[6] AS INT) AS status,
  coalesce(try_cast(f[7] AS BIGINT), 0) AS bytes,
  f[8] AS referer,
  f[9] AS agent
FROM (
  SELECT seq, line, split(regexp_replace(
    line,
    r'^(?:(\S+):\d+ )?(\S+) (\S+) (\S+) \[(\d\d/\w{3}/[12]\d{3}:\d\d:\d\d:\d\d [+-]\d{4})\] "((?:[^"\\\n]|\\.)*+)" (\d{3}) (\d{1,12}|-)(?: "((?:[^"\\\n]|\\.)*+)" "((?:[^"\\\n]|\\.)*+)")?\r?\z|(?s)^.*\z',
    '$1\n$2\n$3\n$4\n$5\n$6\n$7\n$8\n$9\n$10'
  ), '\n') AS f
  FROM log_lines
);

-- The well-formed requests. A page is what a visitor asked for and got, not the images, styles and
-- downloads that belong to it.
CREATE VIEW requests AS
SELECT
  seq,
  CASE WHEN site = '' THEN '-' ELSE site END AS site,
  try_to_date(substr(stamp, 1, 11), 'dd/MMM/yyyy') AS day,
  ts,
  host,
  login,
  method,
  path,
  status,
  bytes,
  referer,
  agent,
  method IN ('GET', 'POST')
    AND status < 400
    AND NOT regexp_like(path, r'(?i)^[^?]*\.(gif|jpe?g|png|bmp|ico|xbm|svg|webp|css|js|map|ttf|woff2?|eot|swf|mpe?g|mp[34]|avi|wav|pdf|zip|t?gz)(\?|$)')
    AS is_page
FROM (
  SELECT
    *,
    split_part(request, ' ', 1) AS method,
    regexp_extract(request, r'^\S+ (.*?)(?: HTTP/\S+)?$', 1) AS path
  FROM parsed_lines
  WHERE ts IS NOT NULL
);

-- What could not be read, kept as it was.
CREATE VIEW malformed_lines AS
SELECT seq, line FROM parsed_lines WHERE ts IS NULL;

CREATE VIEW malformed_count AS
SELECT count(*) AS malformed FROM malformed_lines;

-- Each request with the seconds since the visitor's last one: does it enter (begin a visit), is it the
-- one after which the visitor left?
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

-- First level: a visitor's day.
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

-- Second level: the basic statistics of a site's day. ips counts the visitors that the log knows by
-- address, without those it knows by name.
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

-- What follows from the basic statistics.
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

-- Of the whole log.
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

-- Of each site's day.
CREATE VIEW top_pages_of_day AS
SELECT site, day, rank, path, requests
FROM (
  SELECT *, row_number() OVER (PARTITION BY site, day ORDER BY requests DESC, path) AS rank
  FROM page_counts
)
WHERE rank <= 5;
