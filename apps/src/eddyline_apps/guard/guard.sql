-- The views of `eddyline guard`: rates of requests, limits, offenders and the block list. Change a copy of
-- this file to your needs, and name it in the configuration: `sql: my_guard.sql`.
--
-- Tables that the command writes:
--   log_lines(file, end_at, value, read_at)  lines of the access logs without NULs and a byte-order mark before them, the position after each,
--            and the time of the clock when it was read. Old lines are deleted, and with them their rows
--            in all views
--   log_files(file, path, device, inode, length, beginning)  the files that were read, and what tells that a file
--            is the same, or a copy
--   clock(id, now)       one row, the time as of this epoch. No view asks another clock, so that verify
--            and a replay see the same time
--   settings(name, value)  capacity: requests a second, where the configuration gives it
--   rules(rule, subject, metric, window_s, share, times, quantile, at_least, at_most, addresses, block_s, baseline)
--   zone(id, name)       one row, the time zone in which hours and days are counted
--   history(slot_start, subject, metric, window_s, targets, p50, p90, p99, top, attack_share)  what was done in 5 minutes,
--            as baselines.sql has found it: only if a rule has a baseline. Old rows are deleted
--   allowed(network, first_key, last_key)  the allow-list; keys as in offenders
--   admissions(target, rule, evidence, since)  whom the guard has put on the block list, and why
--   decisions(id, at, who, action, target, first_key, last_key, until, reason)  what people have decided: to block
--            or to allow (action) an address or network until a time. Rows are only ever added: the table is the audit
--
-- Terms:
--   address  the first column of the log, if it is an IP address; ::ffff:a.b.c.d is a.b.c.d
--   network  its /24, or the /48 of an IPv6 address
--   visitor  an address with a user agent
--   page     a request for anything but images, styles, scripts and downloads
--   login    a POST to a path that looks like a login, also if it is written with %XX
--   error    an answer with a status from 400 on
--   answered a request whose status is below 500, and not 403 or 429
--   window   1 s; and 10 s, 1 min and 5 min, each beginning every half of its length, so that a burst
--            of half a window lies in one window as a whole. A time belongs to seven windows
--
-- No line, whatever it holds, makes a view fail.

-- The well-formed requests. common, combined and vhost_combined formats, the site with or without a port, with an optional time that the
-- request took, in seconds, at the end. After the address come `-` and the login, which may hold spaces, or two words. Sites
-- and addresses hold no comma: of a list, nobody knows whose address the client's is. The quantifiers inside quotes are
-- possessive, and a login ends at the first date that a quote follows: a line of any length is matched in linear time. A line that is dated more than 5 minutes after it was read is left out, as its clock
-- was wrong. seen_at: its time, but not later than it was read, so that no block is longer than the rule says.
CREATE VIEW requests AS
SELECT
  ts,
  least(ts, read_at) AS seen_at,
  site,
  address,
  CASE
    WHEN address LIKE '%.%' THEN regexp_replace(address, r'\.\d+$', '.0/24')
    ELSE concat_ws(':', slice(concat(head, array_repeat('0', 8 - size(head) - size(tail)), tail), 1, 3)) || '::/48'
  END AS network,
  agent,
  method,
  path,
  status,
  request_s,
  NOT regexp_like(plain_path, r'(?i)\.(gif|jpe?g|png|bmp|ico|svg|webp|avif|css|js|map|ttf|woff2?|eot|swf|mpe?g|mp[34]|avi|wav|pdf|zip|t?gz)$')
    AS is_page,
  method = 'POST'
    AND regexp_like(plain_path, r'(?i)(^|[/_-])(log-?in|logon|sign-?in|auth|session|token|xmlrpc)([/._;-]|$)')
    AS is_login
FROM (
  SELECT
    try_to_timestamp(f[4], 'dd/MMM/yyyy:HH:mm:ss Z') AS ts,
    CASE WHEN f[0] = '' THEN '-' ELSE f[0] END AS site,
    lower(f[1]) AS address,
    filter(split(split_part(lower(f[1]), '::', 1), ':'), part -> part <> '') AS head,
    filter(split(split_part(lower(f[1]), '::', 2), ':'), part -> part <> '') AS tail,
    split_part(f[5], ' ', 1) AS method,
    regexp_extract(f[5], r'^\S+ +([^ ?#]*)', 1) AS path,
    try_url_decode(regexp_replace(replace(regexp_extract(f[5], r'^\S+ +([^ ?#]*)', 1), '+', '%2B'), '%(?![0-9A-Fa-f]{2})', '%25'))
      AS plain_path,
    try_cast(f[6] AS INT) AS status,
    f[9] AS agent,
    try_cast(f[10] AS DOUBLE) AS request_s,
    read_at
  FROM (
    SELECT read_at, split(regexp_replace(
      value,
      r'^(?:((?:[^\s,:]++|\[[^\s,\]]*+\])(?=:\d++ )|[^\s,]++(?= \S*[.:]))(?::\d++)? )?(?i:::ffff:(?=[\d.]+ ))?([^\s,]++) (-|[^\s,]++(?= \S++ \[)) (?>([^\r\n]*?) \[(\d\d/\w{3}/[12]\d{3}:\d\d:\d\d:\d\d [+-]\d{4})\] ")([^"\\\n]*+(?:\\.[^"\\\n]*+)*+)" (\d{3}) (-?\d++|-)(?: "([^"\\\n]*+(?:\\.[^"\\\n]*+)*+)" "([^"\\\n]*+(?:\\.[^"\\\n]*+)*+)")?(?: (\d{1,9}(?:\.\d{1,9})?))?\r?\z|(?s)^.*\z',
      '$1\n$2\n$3\n$4\n$5\n$6\n$7\n$8\n$9\n$10\n$11'
    ), '\n') AS f
    FROM log_lines
  )
)
WHERE ts <= read_at + INTERVAL 5 MINUTES
  AND regexp_like(address, r'^(((25[0-5]|2[0-4]\d|1?\d?\d)(\.(?!$)|$)){4}|[0-9a-f]{0,4}(:[0-9a-f]{0,4}){2,7})$')
  AND (address LIKE '%.%' OR CASE WHEN address LIKE '%::%' THEN size(head) + size(tail) < 8 ELSE size(head) = 8 END);

-- Requests of each visitor in each window.
CREATE VIEW visitor_rates AS
SELECT
  window_s, window_start, network, address, agent,
  count(*) AS requests,
  count_if(is_page) AS pages,
  count_if(is_login) AS logins,
  count_if(status >= 400) AS errors,
  count_if(status < 500 AND status NOT IN (403, 429)) AS answered,
  coalesce(sum(request_s), 0) AS request_s,
  max(seen_at) AS last_at
FROM (
  SELECT *, inline(array(
    (1, timestamp_seconds(second)),
    (10, timestamp_seconds(second - second % 5)),
    (10, timestamp_seconds(second - second % 5 - 5)),
    (60, timestamp_seconds(second - second % 30)),
    (60, timestamp_seconds(second - second % 30 - 30)),
    (300, timestamp_seconds(second - second % 150)),
    (300, timestamp_seconds(second - second % 150 - 150))
  )) AS (window_s, window_start)
  FROM (SELECT *, unix_seconds(ts) AS second FROM requests)
)
GROUP BY window_s, window_start, network, address, agent;

CREATE VIEW address_rates AS
SELECT
  window_s, window_start, network, address,
  sum(requests) AS requests, sum(pages) AS pages, sum(logins) AS logins,
  sum(errors) AS errors, sum(answered) AS answered, sum(request_s) AS request_s,
  count(*) AS visitors,
  max(last_at) AS last_at
FROM visitor_rates
GROUP BY window_s, window_start, network, address;

CREATE VIEW network_rates AS
SELECT
  window_s, window_start, network,
  sum(requests) AS requests, sum(pages) AS pages, sum(logins) AS logins,
  sum(errors) AS errors, sum(answered) AS answered, sum(request_s) AS request_s,
  sum(visitors) AS visitors,
  count(*) AS addresses,
  max(last_at) AS last_at
FROM address_rates
GROUP BY window_s, window_start, network;

-- All requests: UV, IPs, pages per visitor, errors and latency of the server.
CREATE VIEW server_rates AS
SELECT
  window_s, window_start, requests, pages, logins, errors, answered, visitors, addresses, networks, last_at,
  round(answered / window_s, 3) AS answered_per_s,
  round(pages / visitors, 3) AS pages_per_visitor,
  round(errors / requests, 4) AS error_share,
  round(request_s / requests, 6) AS mean_request_s
FROM (
  SELECT
    window_s, window_start,
    sum(requests) AS requests, sum(pages) AS pages, sum(logins) AS logins,
    sum(errors) AS errors, sum(answered) AS answered, sum(request_s) AS request_s,
    sum(visitors) AS visitors, sum(addresses) AS addresses, count(*) AS networks,
    max(last_at) AS last_at
  FROM network_rates
  GROUP BY window_s, window_start
);

CREATE VIEW agent_rates AS
SELECT
  window_s, window_start, agent,
  sum(requests) AS requests, sum(pages) AS pages, sum(errors) AS errors, sum(request_s) AS request_s,
  count(*) AS visitors
FROM visitor_rates
GROUP BY window_s, window_start, agent;

CREATE VIEW url_rates AS
SELECT
  window_s, window_start, path,
  count(*) AS requests,
  count_if(status >= 400) AS errors,
  coalesce(sum(request_s), 0) AS request_s
FROM (
  SELECT *, inline(array(
    (1, timestamp_seconds(second)),
    (10, timestamp_seconds(second - second % 5)),
    (10, timestamp_seconds(second - second % 5 - 5)),
    (60, timestamp_seconds(second - second % 30)),
    (60, timestamp_seconds(second - second % 30 - 30)),
    (300, timestamp_seconds(second - second % 150)),
    (300, timestamp_seconds(second - second % 150 - 150))
  )) AS (window_s, window_start)
  FROM (SELECT path, status, request_s, unix_seconds(ts) AS second FROM requests)
)
GROUP BY window_s, window_start, path;

-- The ten busiest visitors, addresses, networks, user agents and URLs of each window, sorted by rank.
CREATE VIEW top AS
SELECT
  subject, window_s, window_start, rank, name, agent, requests, pages, errors, visitors,
  round(errors / requests, 4) AS error_share,
  round(request_s / requests, 6) AS mean_request_s
FROM (
  SELECT *, row_number() OVER (
    PARTITION BY subject, window_s, window_start ORDER BY requests DESC, name, agent
  ) AS rank
  FROM (
    SELECT 'visitor' AS subject, window_s, window_start, address AS name, agent, requests, pages, errors, 1 AS visitors, request_s
    FROM visitor_rates
    UNION ALL
    SELECT 'address', window_s, window_start, address, '', requests, pages, errors, visitors, request_s FROM address_rates
    UNION ALL
    SELECT 'network', window_s, window_start, network, '', requests, pages, errors, visitors, request_s FROM network_rates
    UNION ALL
    SELECT 'agent', window_s, window_start, agent, '', requests, pages, errors, visitors, request_s FROM agent_rates
    UNION ALL
    SELECT 'url', window_s, window_start, path, '', requests, NULL, errors, NULL, request_s FROM url_rates
  )
)
WHERE rank <= 10;

-- What addresses do in a window, whatever they are: half, nine of ten, 99 of 100 do no more than this.
CREATE VIEW quantiles AS
SELECT
  window_s, metric,
  max(total) AS addresses,
  min(CASE WHEN up_to >= 0.5 * total THEN value END) AS p50,
  min(CASE WHEN up_to >= 0.9 * total THEN value END) AS p90,
  min(CASE WHEN up_to >= 0.99 * total THEN value END) AS p99
FROM (
  SELECT window_s, metric, value,
    sum(n) OVER (PARTITION BY window_s, metric ORDER BY value) AS up_to,
    sum(n) OVER (PARTITION BY window_s, metric) AS total
  FROM (
    SELECT window_s, metric, value, count(*) AS n
    FROM (SELECT window_s, stack(2, 'requests', requests, 'pages', pages) AS (metric, value) FROM address_rates)
    WHERE value > 0
    GROUP BY window_s, metric, value
  )
)
GROUP BY window_s, metric;

-- What is normal at each hour of the day, on weekdays, weekends and any day: a slot of 5 minutes has a value for half, nine of
-- ten, 99 of 100 and all (`top`) of those who did anything. A day has the highest of the hour's slots, and the baseline is the median of
-- the days: what happens on less than half of them doesn't move it. The hour of a day is left out as a whole if more than a tenth of
-- the answers of one of its slots went to attackers. An hour of less than three days has no baseline.
CREATE VIEW baselines AS
SELECT
  subject, metric, window_s, days, hour, count(*) AS learnt_days,
  median(p50) AS p50, median(p90) AS p90, median(p99) AS p99, median(top) AS top
FROM (
  SELECT *, explode(array(CASE WHEN weekday(day) >= 5 THEN 'weekend' ELSE 'weekday' END, 'any')) AS days
  FROM (
    SELECT subject, metric, window_s, day, hour, max(p50) AS p50, max(p90) AS p90, max(p99) AS p99, max(top) AS top
    FROM (
      SELECT *, CAST(local AS DATE) AS day, hour(local) AS hour
      FROM (
        SELECT h.*, convert_timezone('UTC', z.name,
          timestampadd(MICROSECOND, unix_micros(h.slot_start), TIMESTAMP_NTZ '1970-01-01 00:00:00')) AS local
        FROM history h
        CROSS JOIN (SELECT coalesce(max(name), 'UTC') AS name FROM zone) z
      )
    )
    GROUP BY subject, metric, window_s, day, hour
    HAVING max(attack_share) <= 0.1
  )
)
GROUP BY subject, metric, window_s, days, hour
HAVING count(*) >= 3;

-- The limits of rules with a baseline, at each hour: a multiple of what is normal then on weekdays or weekends; until that is
-- known, on any day; until that is known, at_most.
CREATE VIEW hour_limits AS
SELECT
  rule, days, hour, learnt_days, normal,
  CASE WHEN exact < 100 THEN ceil(exact)
    ELSE ceil(exact / power(10, floor(log10(exact)) - 1)) * power(10, floor(log10(exact)) - 1)
  END AS bound
FROM (
  SELECT *, greatest(at_least, least(at_most, coalesce(times * normal, at_most))) AS exact
  FROM (
    SELECT
      r.rule, r.days, r.hour, r.times, r.at_least, r.at_most,
      coalesce(own.learnt_days, every_day.learnt_days, 0) AS learnt_days,
      CASE r.quantile
        WHEN 0.5 THEN coalesce(own.p50, every_day.p50)
        WHEN 0.9 THEN coalesce(own.p90, every_day.p90)
        WHEN 0.99 THEN coalesce(own.p99, every_day.p99)
        ELSE coalesce(own.top, every_day.top)
      END AS normal
    FROM (
      SELECT *, explode(sequence(0, 23)) AS hour
      FROM (SELECT *, explode(array('weekday', 'weekend')) AS days FROM rules WHERE baseline)
    ) r
    LEFT JOIN baselines own ON own.subject = r.subject AND own.metric = r.metric AND own.window_s = r.window_s
      AND own.days = r.days AND own.hour = r.hour
    LEFT JOIN baselines every_day ON every_day.subject = r.subject AND every_day.metric = r.metric
      AND every_day.window_s = r.window_s AND every_day.days = 'any' AND every_day.hour = r.hour
  )
);

-- The limit of each rule: a share of the capacity, or a multiple of a quantile of all addresses once there
-- are 50 rates of them; in any case between at_least and at_most. The capacity is that of the configuration, or
-- measured: the most requests a second that the server has answered over 10 s. An attack that is answered
-- counts as well: an address is over a share only if it takes more than that of all. Two digits of a limit
-- are kept, rounded up, so that it is steady. Of a rule with a baseline it is that of the hour that it is by the clock.
CREATE VIEW limits AS
SELECT
  rule, block_s, capacity,
  CASE WHEN of_hour IS NOT NULL THEN of_hour
    WHEN exact < 100 THEN ceil(exact)
    ELSE ceil(exact / power(10, floor(log10(exact)) - 1)) * power(10, floor(log10(exact)) - 1)
  END AS bound
FROM (
  SELECT
    r.rule, r.block_s, c.capacity, h.bound AS of_hour,
    greatest(r.at_least, least(r.at_most, coalesce(
      CASE WHEN r.baseline THEN r.at_most END,
      r.share * c.capacity * r.window_s,
      r.times * CASE r.quantile WHEN 0.5 THEN q.p50 WHEN 0.9 THEN q.p90 ELSE q.p99 END,
      r.at_least
    ))) AS exact
  FROM rules r
  CROSS JOIN (
    SELECT coalesce(max(given), max(measured)) AS capacity
    FROM (
      SELECT CAST(NULL AS DOUBLE) AS given, answered / window_s AS measured FROM server_rates WHERE window_s = 10
      UNION ALL
      SELECT value, NULL FROM settings WHERE name = 'capacity'
    )
  ) c
  LEFT JOIN quantiles q ON q.window_s = r.window_s AND q.metric = r.metric AND q.addresses >= 50
  LEFT JOIN (
    SELECT h.rule, h.bound
    FROM hour_limits h
    JOIN (
      SELECT hour(local) AS hour, CASE WHEN weekday(local) >= 5 THEN 'weekend' ELSE 'weekday' END AS days
      FROM (
        SELECT convert_timezone('UTC', z.name,
          timestampadd(MICROSECOND, unix_micros(c.now), TIMESTAMP_NTZ '1970-01-01 00:00:00')) AS local
        FROM clock c
        CROSS JOIN (SELECT coalesce(max(name), 'UTC') AS name FROM zone) z
      )
    ) n ON n.hour = h.hour AND n.days = h.days
  ) h ON h.rule = r.rule
);

-- Decisions by hand that count now: the last one for each target, until its time is over.
CREATE VIEW by_hand AS
SELECT target, first_key, last_key, d.action AS action, d.at AS at, d.who AS who, d.reason AS reason, d.until AS until
FROM (
  SELECT target, first_key, last_key, max(struct(at, id, action, who, reason, until)) AS d
  FROM decisions
  GROUP BY target, first_key, last_key
)
CROSS JOIN (SELECT max(now) AS now FROM clock)
WHERE coalesce(d.until > now, true);

-- What the rules may not block: the allow-list, and what is allowed by hand.
CREATE VIEW exempt AS
SELECT first_key, last_key FROM allowed
UNION ALL
SELECT first_key, last_key FROM by_hand WHERE action = 'allow';

-- What is blocked by hand: unless something of it is on the allow-list, or was allowed by hand since.
CREATE VIEW blocked_by_hand AS
SELECT target, first_key, last_key, who, reason, at, until
FROM by_hand b
WHERE action = 'block'
  AND NOT EXISTS (SELECT 1 FROM allowed a WHERE b.first_key <= a.last_key AND a.first_key <= b.last_key)
  AND NOT EXISTS (
    SELECT 1 FROM by_hand h
    WHERE h.action = 'allow' AND h.at > b.at AND b.first_key <= h.last_key AND h.first_key <= b.last_key
  );

-- What each rule compares with its limit, in all windows of at least 5 requests.
CREATE VIEW compared AS
SELECT
  r.rule, r.metric, r.at_least,
  s.target, s.network, s.window_s, s.window_start, s.last_at, s.addresses,
  CASE r.metric WHEN 'requests' THEN s.requests WHEN 'pages' THEN s.pages WHEN 'logins' THEN s.logins ELSE s.errors END AS value
FROM (
  SELECT 'address' AS subject, address AS target, network, window_s, window_start, last_at, requests, pages, logins, errors, 1 AS addresses
  FROM address_rates WHERE requests >= 5
  UNION ALL
  SELECT 'visitor', address, network, window_s, window_start, last_at, requests, pages, logins, errors, 1
  FROM visitor_rates WHERE requests >= 5
  UNION ALL
  SELECT 'network', network, network, window_s, window_start, last_at, requests, pages, logins, errors, addresses
  FROM network_rates WHERE requests >= 5
) s
JOIN rules r ON r.subject = s.subject AND r.window_s = s.window_s AND s.addresses >= r.addresses;

-- What is going on: for each rule the ten who come nearest to its limit, or are farthest over it, in the newest
-- window that is at least half over; beside the limit.
CREATE VIEW busiest AS
SELECT b.rule, b.metric, b.window_s, b.window_start, b.rank, b.target, b.value, l.bound, round(100 * b.value / l.bound) AS percent
FROM (
  SELECT *, row_number() OVER (PARTITION BY rule ORDER BY value DESC, target) AS rank
  FROM (
    SELECT c.rule, c.metric, c.window_s, c.window_start, c.target, max(c.value) AS value
    FROM compared c
    JOIN (
      SELECT window_s, timestamp_seconds(unix_seconds(max(window_start)) - window_s div 2) AS window_start
      FROM server_rates
      GROUP BY window_s
    ) newest ON newest.window_s = c.window_s AND newest.window_start = c.window_start
    WHERE c.value > 0
    GROUP BY c.rule, c.metric, c.window_s, c.window_start, c.target
  )
) b
JOIN limits l ON l.rule = b.rule
WHERE b.rank <= 10;

-- The evidence: windows in which a target was over the limit of a rule. The inner query finds who is as busy
-- as a rule's at_least, whatever the limit is at the moment: only these few are compared again when
-- a limit moves. A window is compared with the limit of its own hour, so that what was normal then stays so.
CREATE VIEW offences AS
SELECT target, network, rule, metric, window_s, window_start, value, bound, addresses, last_at, until
FROM (
  SELECT
    c.target, c.network, c.rule, c.metric, c.window_s, c.window_start, c.value, coalesce(h.bound, l.bound) AS bound,
    c.addresses, c.last_at, timestamp_seconds(unix_seconds(c.last_at) + l.block_s) AS until
  FROM (
    SELECT *, hour(local) AS hour, CASE WHEN weekday(local) >= 5 THEN 'weekend' ELSE 'weekday' END AS days
    FROM (
      SELECT o.*, convert_timezone('UTC', z.name,
        timestampadd(MICROSECOND, unix_micros(o.window_start), TIMESTAMP_NTZ '1970-01-01 00:00:00')) AS local
      FROM compared o
      CROSS JOIN (SELECT coalesce(max(name), 'UTC') AS name FROM zone) z
      WHERE o.value >= o.at_least
    )
  ) c
  JOIN limits l ON l.rule = c.rule
  LEFT JOIN hour_limits h ON h.rule = c.rule AND h.days = c.days AND h.hour = c.hour
)
WHERE value >= bound;

-- One row for each target over a limit, with its gravest offence (severity: percent of the limit), unless
-- something of it is on the allow-list or allowed by hand. The keys are the first and the last address of the target as 32
-- hexadecimal digits, IPv4 as ::ffff:a.b.c.d.
CREATE VIEW offenders AS
SELECT *
FROM (
  SELECT
    target, network, worst.rule AS rule, worst.severity AS severity, worst.evidence AS evidence, windows, until,
    first_key,
    CASE
      WHEN target = network AND target LIKE '%.%' THEN substr(first_key, 1, 30) || 'ff'
      WHEN target = network THEN substr(first_key, 1, 12) || repeat('f', 20)
      ELSE first_key
    END AS last_key
  FROM (
    SELECT
      *,
      CASE
        WHEN target LIKE '%.%' THEN concat(repeat('0', 20), 'ffff', array_join(
          transform(split(split_part(target, '/', 1), r'\.'), part -> lpad(lower(hex(CAST(part AS INT))), 2, '0')), ''))
        ELSE array_join(transform(
          concat(head, array_repeat('0', 8 - size(head) - size(tail)), tail), part -> lpad(part, 4, '0')), '')
      END AS first_key
    FROM (
      SELECT
        *,
        filter(split(split_part(split_part(target, '/', 1), '::', 1), ':'), part -> part <> '') AS head,
        filter(split(split_part(split_part(target, '/', 1), '::', 2), ':'), part -> part <> '') AS tail
      FROM (
        SELECT
          target, network, count(*) AS windows, max(until) AS until,
          max(struct(
            CAST(round(100 * value / bound) AS BIGINT) AS severity,
            rule,
            concat(value, ' ', metric, ' in ', window_s, ' s from ', date_format(window_start, "yyyy-MM-dd'T'HH:mm:ss"),
              CASE WHEN addresses > 1 THEN concat(' by ', addresses, ' addresses') ELSE '' END,
              ', the limit is ', CAST(bound AS BIGINT)) AS evidence
          )) AS worst
        FROM offences
        GROUP BY target, network
      )
    )
  )
) o
WHERE NOT EXISTS (SELECT 1 FROM exempt e WHERE o.first_key <= e.last_key AND e.first_key <= o.last_key);

-- The block list: who was admitted to it, as long as the time isn't over and the evidence holds; and who is
-- blocked by hand.
CREATE VIEW block_list AS
SELECT a.target, a.rule AS reason, a.evidence, a.since, o.until
FROM admissions a
JOIN offenders o ON o.target = a.target
CROSS JOIN clock c
LEFT ANTI JOIN blocked_by_hand h ON h.first_key = o.first_key AND h.last_key = o.last_key
WHERE o.until > c.now
UNION ALL
SELECT target, 'by hand', concat(who, ': ', reason), at, until FROM blocked_by_hand;

-- The same without `until`, which moves with each request: what notifications follow.
CREATE VIEW blocked AS
SELECT target, reason, evidence, since FROM block_list;

-- Who is to be admitted, as far as the number of new blocks a minute allows, the gravest first.
CREATE VIEW waiting AS
SELECT o.target, o.network, o.rule, o.severity, o.evidence, o.until
FROM offenders o
CROSS JOIN clock c
LEFT ANTI JOIN admissions a ON a.target = o.target
LEFT ANTI JOIN blocked_by_hand h ON h.first_key = o.first_key AND h.last_key = o.last_key
WHERE o.until > c.now;
