-- Web statistics of each site and day: plain Spark SQL, views on views. docs/webstats.md says what each
-- number means. `eddyline webstats --show-views` prints this file; change a copy and give it with --views.
--
-- Input: in `WITH parsed_lines` stands the SELECT that parses the lines of the log (webstats/log_formats.py). It
-- has the columns seq, line, ts, zone, site, host, user, cookie, method, path, status, bytes, referer,
-- agent, seconds, country and carrier; ts is null in malformed lines. In `is_beacon` stands the condition that a line is a
-- beacon of the page script. In `is_program` stands the condition that
-- the user agent `agent`, in lower case `ua`, is one of a program (webstats/programs.py).
--
-- webstats_key(salt, value) is a hash with the storage's secret. webstats_place(host, seq) gives the country and the
-- carrier of a client by the files after --places, or null; beacons of the page script have them in their lines.
-- Nothing else of a client's address, login, cookie or user agent is kept in these views.

-- The requests, described. A page is a beacon, or a request that was answered without an error, also by a redirect, but for the images,
-- styles and downloads that belong to it. Its status is 0 if the client left before an answer. `visitor` is hashed with the salt of its day, so that a visitor can't be followed over
-- days. Only visits over midnight need the salt of the day before, or after: `visitor_before` until 06:00,
-- `visitor_after` from 23:30.
CREATE VIEW requests AS
WITH parsed_lines AS (
{parsed_lines}
),
local AS (
  SELECT
    *,
    unix_seconds(ts) AS second,
    convert_timezone('UTC', zone,
      timestampadd(MICROSECOND, unix_micros(ts), TIMESTAMP_NTZ '1970-01-01 00:00:00')) AS clock,
    coalesce(cookie, concat_ws(' ', host, user, agent)) AS client,
    lower(coalesce(agent, '')) AS ua,
    regexp_extract(lower(referer), r'^https?://(?:[^/?#@]*+@)?(\[[^\]/?#@]*\]|[^\[/:?#@][^/:?#@]*)', 1) AS origin,
    webstats_place(CASE WHEN country IS NULL AND carrier IS NULL THEN host END, seq) AS place
  FROM parsed_lines
  WHERE ts IS NOT NULL
)
SELECT
  seq,
  site,
  CAST(clock AS DATE) AS day,
  hour(clock) AS hour,
  minute(clock) AS minute,
  second,
  -- whatever its path, a beacon is of a page that was shown
  ({is_beacon} OR (method IN ('GET', 'POST')
    AND status BETWEEN 1 AND 399
    AND NOT regexp_like(path, r'(?i)^[^?]*\.(gif|jpe?g|png|bmp|ico|xbm|svg|webp|avif|heic|jxl|css|m?js|map|wasm|webmanifest|[ot]tf|woff2?|eot|swf|mpe?g|mp[34]|m4[av]|m3u8|ts|webm|mov|avi|wav|ogg|opus|flac|pdf|zip|t?gz|tar|bz2|xz|zst|7z|rar)(\?|$)')))
    AS is_page,
  method,
  left(path, 2000) AS path,
  status,
  bytes,
  seconds,
  CASE WHEN origin = '' OR origin = site OR origin = concat('www.', site) OR concat('www.', origin) = site
    THEN NULL ELSE left(origin, 250) END AS referrer,
  CASE
    WHEN regexp_like(origin, r'(^|\.)google\.[a-z.]{2,6}$') THEN 'Google'
    WHEN regexp_like(origin, r'(^|\.)bing\.com$') THEN 'Bing'
    WHEN regexp_like(origin, r'(^|\.)duckduckgo\.com$') THEN 'DuckDuckGo'
    WHEN regexp_like(origin, r'(^|\.)search\.yahoo\.com$') THEN 'Yahoo'
    WHEN regexp_like(origin, r'(^|\.)yandex\.[a-z.]{2,6}$') THEN 'Yandex'
    WHEN regexp_like(origin, r'(^|\.)baidu\.com$') THEN 'Baidu'
    WHEN regexp_like(origin, r'(^|\.)(ecosia\.org|qwant\.com|startpage\.com|kagi\.com)$') THEN 'other'
    WHEN regexp_like(origin, r'^search\.brave\.com$') THEN 'Brave'
  END AS search_engine,
  CASE
    WHEN agent IS NULL THEN 'unknown'
    WHEN contains(ua, 'edg/') OR contains(ua, 'edga/') OR contains(ua, 'edge/') THEN 'Edge'
    WHEN contains(ua, 'opr/') OR contains(ua, 'opera') THEN 'Opera'
    WHEN contains(ua, 'samsungbrowser') THEN 'Samsung Internet'
    WHEN contains(ua, 'firefox/') OR contains(ua, 'fxios/') THEN 'Firefox'
    WHEN contains(ua, 'chrome/') OR contains(ua, 'crios/') OR contains(ua, 'chromium/') THEN 'Chrome'
    WHEN contains(ua, 'msie ') OR contains(ua, 'trident/') THEN 'Internet Explorer'
    WHEN contains(ua, 'safari/') THEN 'Safari'
    ELSE 'other'
  END AS browser,
  CASE
    WHEN agent IS NULL THEN 'unknown'
    WHEN contains(ua, 'ipad') OR contains(ua, 'tablet') OR (contains(ua, 'android') AND NOT contains(ua, 'mobi'))
      THEN 'tablet'
    WHEN contains(ua, 'mobi') OR contains(ua, 'iphone') THEN 'phone'
    WHEN contains(ua, 'windows') OR contains(ua, 'macintosh') OR contains(ua, 'linux') OR contains(ua, 'x11')
      OR contains(ua, 'cros') THEN 'computer'
    ELSE 'other'
  END AS device,
  coalesce(country, place.country) AS country,
  coalesce(carrier, place.carrier) AS carrier,
  -- programs: by a word, by an address, by a name without the `Mozilla/5.0 (...)` of browsers, or by a name of the list
  {is_program}
    AS is_bot,
  webstats_key(CAST(CAST(clock AS DATE) AS STRING), client) AS visitor,
  CASE WHEN hour(clock) < 6
    THEN webstats_key(CAST(date_sub(CAST(clock AS DATE), 1) AS STRING), client) END AS visitor_before,
  CASE WHEN hour(clock) = 23 AND minute(clock) >= 30
    THEN webstats_key(CAST(date_add(CAST(clock AS DATE), 1) AS STRING), client) END AS visitor_after,
  webstats_key('address', host) AS address
FROM local;

-- The malformed lines, unmodified.
CREATE VIEW malformed_lines AS
WITH parsed_lines AS (
{parsed_lines}
)
SELECT seq, line FROM parsed_lines WHERE ts IS NULL;

CREATE VIEW malformed_count AS
SELECT count(*) AS malformed FROM malformed_lines;

-- First level: what each visitor did from each address, by hour.
CREATE VIEW hour_visitors AS
SELECT
  site, day, hour, is_bot, visitor, address,
  count(*) AS pv,
  count_if(is_page) AS page_pv,
  sum(bytes) AS bytes
FROM requests
GROUP BY site, day, hour, is_bot, visitor, address;

-- Requests a minute.
CREATE VIEW minutes AS
SELECT site, day, hour, minute, is_bot, count(*) AS pv, count_if(is_page) AS page_pv, sum(bytes) AS bytes
FROM requests
GROUP BY site, day, hour, minute, is_bot;

-- Visitors of a day. One is new if the site has not seen any of its addresses on an earlier day.
CREATE VIEW visitor_days AS
SELECT
  site, day, is_bot, visitor,
  sum(pv) AS pv,
  sum(page_pv) AS page_pv,
  sum(bytes) AS bytes,
  bool_and(day = first_day) AS is_new
FROM (
  SELECT *, min(day) OVER (PARTITION BY site, address) AS first_day
  FROM (
    SELECT site, day, is_bot, visitor, address, sum(pv) AS pv, sum(page_pv) AS page_pv, sum(bytes) AS bytes
    FROM hour_visitors
    GROUP BY site, day, is_bot, visitor, address
  )
)
GROUP BY site, day, is_bot, visitor;

-- What a visitor did within half an hour, counted from 1970. Two requests of one slot are never more than
-- 1,800 s apart, so visits can be made of slots, however many requests a slot has. The slots of a day and
-- its visitors (part 0) come with the last half hour of the day before (part -1) and the first six hours
-- of the day after (part 1). `entry` and `exit` are the first and the last page: 16 digits of the second,
-- 19 of `seq`, and the path.
CREATE VIEW activity AS
SELECT
  site, day, is_bot, visitor, part, slot,
  min(second) AS first_s,
  max(second) AS last_s,
  min(hour) AS hour,
  count(*) AS pv,
  count_if(is_page) AS page_pv,
  sum(bytes) AS bytes,
  min(CASE WHEN is_page THEN step END) AS entry,
  max(CASE WHEN is_page THEN step END) AS exit
FROM (
  SELECT
    site, is_bot, second, hour, is_page, bytes,
    floor(second / 1800) AS slot,
    concat(lpad(CAST(second AS STRING), 16, '0'), lpad(CAST(seq AS STRING), 19, '0'), path) AS step,
    inline(array(
      struct(day AS day, 0 AS part, visitor AS visitor),
      struct(date_sub(day, 1) AS day, 1 AS part, visitor_before AS visitor),
      struct(date_add(day, 1) AS day, -1 AS part, visitor_after AS visitor)))
  FROM requests
)
WHERE visitor IS NOT NULL
GROUP BY site, day, is_bot, visitor, part, slot;

-- Visits: a pause of more than 1,800 s ends one. It belongs to the day and the hour of its start.
CREATE VIEW visits AS
SELECT
  site, day, is_bot, visitor, number,
  min(first_s) AS first_s,
  max(last_s) - min(first_s) AS duration_s,
  min_by(hour, first_s) AS hour,
  sum(pv) AS pv,
  sum(page_pv) AS page_pv,
  substr(min(entry), 36) AS entry_page,
  substr(max(exit), 36) AS exit_page
FROM (
  SELECT
    *,
    sum(CASE WHEN pause_s <= 1800 THEN 0 ELSE 1 END) OVER (
      PARTITION BY site, day, is_bot, visitor ORDER BY slot, part ROWS UNBOUNDED PRECEDING) AS number
  FROM (
    SELECT
      *,
      first_s - lag(last_s) OVER (PARTITION BY site, day, is_bot, visitor ORDER BY slot, part) AS pause_s
    FROM activity
  )
)
GROUP BY site, day, is_bot, visitor, number
HAVING min(part) = 0;

-- Second level: the statistics of a site and day, apart for people and for programs (is_bot).
CREATE VIEW daily_statistics AS
SELECT
  site, day, is_bot,
  sum(pv) AS pv,
  sum(page_pv) AS page_pv,
  sum(uv) AS uv,
  sum(ips) AS ips,
  sum(bytes) AS bytes,
  sum(visits) AS visits,
  sum(bounces) AS bounces,
  sum(one_page_visits) AS one_page_visits,
  sum(duration_s) AS visit_seconds,
  sum(new) AS new_visitors,
  sum(returning) AS returning_visitors,
  round(try_divide(sum(visits), sum(uv)), 6) AS visit_frequency,
  round(try_divide(sum(duration_s), sum(visits)), 6) AS average_duration_s,
  round(try_divide(sum(pv), sum(visits)), 6) AS average_depth,
  round(try_divide(sum(pv), sum(uv)), 6) AS pages_per_visitor,
  round(try_divide(sum(one_page_visits), sum(visits_with_page)), 6) AS bounce_rate
FROM (
  SELECT
    site, day, is_bot, pv, page_pv, 1 AS uv, 0 AS ips, bytes, 0 AS visits, 0 AS bounces,
    0 AS one_page_visits, 0 AS visits_with_page, 0 AS duration_s, int(is_new) AS new, 0 AS returning
  FROM visitor_days
  UNION ALL
  SELECT site, day, is_bot, 0, 0, 0, count(DISTINCT address), 0, 0, 0, 0, 0, 0, 0, 0
  FROM hour_visitors
  GROUP BY site, day, is_bot
  UNION ALL
  SELECT
    site, day, is_bot, 0, 0, 0, 0, 0, count(*), count_if(pv = 1),
    count_if(page_pv = 1), count_if(page_pv > 0), sum(duration_s), 0, int(count(*) > 1)
  FROM visits
  GROUP BY site, day, is_bot, visitor
)
GROUP BY site, day, is_bot;

-- The same by hour. Visits are counted in the hour of their start.
CREATE VIEW hourly_statistics AS
SELECT
  site, day, hour, is_bot,
  sum(pv) AS pv,
  sum(page_pv) AS page_pv,
  sum(uv) AS uv,
  sum(ips) AS ips,
  sum(bytes) AS bytes,
  sum(visits) AS visits,
  sum(duration_s) AS visit_seconds
FROM (
  SELECT
    site, day, hour, is_bot, sum(pv) AS pv, sum(page_pv) AS page_pv, count(DISTINCT visitor) AS uv,
    count(DISTINCT address) AS ips, sum(bytes) AS bytes, 0 AS visits, 0 AS duration_s
  FROM hour_visitors
  GROUP BY site, day, hour, is_bot
  UNION ALL
  SELECT site, day, hour, is_bot, 0, 0, 0, 0, 0, count(*), sum(duration_s)
  FROM visits
  GROUP BY site, day, hour, is_bot
)
GROUP BY site, day, hour, is_bot;

-- How often each page, other path, status, referrer, ... occurs on a day.
CREATE VIEW day_values AS
SELECT
  site, day, is_bot, kind, value,
  count(*) AS requests,
  sum(bytes) AS bytes,
  sum(seconds) AS seconds,
  count(seconds) AS timed
FROM (
  SELECT
    site, day, is_bot, bytes, seconds,
    inline(array(
      struct(CASE WHEN is_page THEN 'page' ELSE 'file' END AS kind, path AS value),
      struct('status' AS kind, CAST(status AS STRING) AS value),
      struct('method' AS kind, left(method, 20) AS value),
      struct('referrer' AS kind, referrer AS value),
      struct('search engine' AS kind, search_engine AS value),
      struct('browser' AS kind, browser AS value),
      struct('device' AS kind, device AS value),
      struct('country' AS kind, country AS value),
      struct('carrier' AS kind, carrier AS value)))
  FROM requests
)
WHERE value IS NOT NULL
GROUP BY site, day, is_bot, kind, value;

-- The 20 most frequent values of each kind on each day.
CREATE VIEW top_values AS
SELECT site, day, is_bot, kind, rank, value, requests, bytes
FROM (
  SELECT
    *,
    row_number() OVER (PARTITION BY site, day, is_bot, kind ORDER BY requests DESC, value) AS rank
  FROM (
    SELECT site, day, is_bot, kind, value, requests, bytes FROM day_values
    UNION ALL
    SELECT site, day, is_bot, 'entry page', entry_page, count(*), CAST(NULL AS BIGINT)
    FROM visits WHERE entry_page IS NOT NULL GROUP BY site, day, is_bot, entry_page
    UNION ALL
    SELECT site, day, is_bot, 'exit page', exit_page, count(*), CAST(NULL AS BIGINT)
    FROM visits WHERE exit_page IS NOT NULL GROUP BY site, day, is_bot, exit_page
  )
)
WHERE rank <= 20;

-- The 20 pages of a day with the longest average duration of a request.
CREATE VIEW slowest_pages AS
SELECT site, day, is_bot, rank, path, requests, average_s
FROM (
  SELECT
    *,
    row_number() OVER (PARTITION BY site, day, is_bot ORDER BY average_s DESC, path) AS rank
  FROM (
    SELECT site, day, is_bot, value AS path, timed AS requests, round(seconds / timed, 6) AS average_s
    FROM day_values
    WHERE kind = 'page' AND timed > 0
  )
)
WHERE rank <= 20;
