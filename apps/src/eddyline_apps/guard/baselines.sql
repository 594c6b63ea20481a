-- What baselines are learnt from: the views that fill the table `history`, if a rule has a baseline. They follow those of guard.sql;
-- its views `baselines` and `hour_limits` make limits of the history.
--
-- A slot is 5 minutes. It is learnt once, when it has been over for 10 minutes: by then attackers of its time are found, and
-- left out.

-- Who is left out: whoever is over a limit in a window that is kept, on the block list, or blocked by hand. `attacks`: unless
-- the allow-list, or a person, lets them.
CREATE VIEW left_out AS
SELECT target, bool_or(attacks) AS attacks
FROM (
  SELECT target, false AS attacks FROM offences
  UNION ALL
  SELECT target, true FROM offenders
  UNION ALL
  SELECT target, true FROM admissions
  UNION ALL
  SELECT target, true FROM blocked_by_hand
  UNION ALL
  SELECT n.network, true
  FROM (
    SELECT
      network, first_key,
      CASE WHEN network LIKE '%.%' THEN concat(substr(first_key, 1, 30), 'ff')
        ELSE concat(substr(first_key, 1, 12), repeat('f', 20)) END AS last_key
    FROM (
      SELECT
        network,
        CASE
          WHEN network LIKE '%.%' THEN concat(repeat('0', 20), 'ffff', array_join(
            transform(split(split_part(network, '/', 1), r'\.'), part -> lpad(lower(hex(CAST(part AS INT))), 2, '0')), ''))
          ELSE concat(array_join(transform(split(split_part(network, '::', 1), ':'), part -> lpad(part, 4, '0')), ''), repeat('0', 20))
        END AS first_key
      FROM (SELECT DISTINCT network FROM network_rates WHERE window_s = 300)
    )
  ) n
  JOIN blocked_by_hand h ON h.first_key <= n.first_key AND n.last_key <= h.last_key
)
GROUP BY target;

-- How much of a slot was answered to attackers.
CREATE VIEW slot_attacks AS
SELECT slot_start, coalesce(try_divide(to_attackers, answered), 0) AS attack_share
FROM (
  SELECT
    a.window_start AS slot_start,
    sum(a.answered) AS answered,
    sum(CASE WHEN coalesce(o.attacks, false) OR coalesce(n.attacks, false) THEN a.answered ELSE 0 END) AS to_attackers
  FROM address_rates a
  LEFT JOIN left_out o ON o.target = a.address
  LEFT JOIN left_out n ON n.target = a.network
  WHERE a.window_s = 300 AND unix_seconds(a.window_start) % 300 = 0
  GROUP BY a.window_start
);

-- What everybody else did in each slot, for each kind of rate that a rule has a baseline of: of each address, visitor or network
-- its highest window that begins in the slot counts.
CREATE VIEW slots AS
SELECT
  slot_start, subject, metric, window_s,
  max(total) AS targets,
  min(CASE WHEN up_to >= 0.5 * total THEN value END) AS p50,
  min(CASE WHEN up_to >= 0.9 * total THEN value END) AS p90,
  min(CASE WHEN up_to >= 0.99 * total THEN value END) AS p99,
  max(value) AS top
FROM (
  SELECT *,
    sum(n) OVER (PARTITION BY slot_start, subject, metric, window_s ORDER BY value) AS up_to,
    sum(n) OVER (PARTITION BY slot_start, subject, metric, window_s) AS total
  FROM (
    SELECT slot_start, subject, metric, window_s, value, count(*) AS n
    FROM (
      SELECT
        w.subject, w.metric, w.window_s, s.target,
        timestamp_seconds(unix_seconds(s.window_start) - unix_seconds(s.window_start) % 300) AS slot_start,
        max(CASE w.metric WHEN 'requests' THEN s.requests WHEN 'pages' THEN s.pages WHEN 'logins' THEN s.logins ELSE s.errors END) AS value
      FROM (SELECT DISTINCT subject, metric, window_s FROM rules WHERE baseline) w
      JOIN (
        SELECT 'address' AS subject, window_s, window_start, network, address, address AS target, requests, pages, logins, errors
        FROM address_rates
        UNION ALL
        SELECT 'visitor', window_s, window_start, network, address, concat(address, ' ', agent), requests, pages, logins, errors
        FROM visitor_rates
      ) s ON s.subject = w.subject AND s.window_s = w.window_s
      LEFT ANTI JOIN left_out o ON o.target = s.address
      LEFT ANTI JOIN left_out n ON n.target = s.network
      GROUP BY w.subject, w.metric, w.window_s, s.target, slot_start
      UNION ALL
      SELECT subject, metric, window_s, network, slot_start, max(value)
      FROM (
        SELECT
          w.subject, w.metric, w.window_s, a.network, a.window_start,
          timestamp_seconds(unix_seconds(a.window_start) - unix_seconds(a.window_start) % 300) AS slot_start,
          sum(CASE w.metric WHEN 'requests' THEN a.requests WHEN 'pages' THEN a.pages WHEN 'logins' THEN a.logins ELSE a.errors END) AS value
        FROM (SELECT DISTINCT subject, metric, window_s FROM rules WHERE baseline AND subject = 'network') w
        JOIN address_rates a ON a.window_s = w.window_s
        LEFT ANTI JOIN left_out o ON o.target = a.address
        LEFT ANTI JOIN left_out n ON n.target = a.network
        GROUP BY w.subject, w.metric, w.window_s, a.network, a.window_start
      )
      GROUP BY subject, metric, window_s, network, slot_start
    )
    WHERE value > 0
    GROUP BY slot_start, subject, metric, window_s, value
  )
)
GROUP BY slot_start, subject, metric, window_s;

-- What is to be added to the history: a window of 5 minutes that begins in a slot ends 5 minutes after it at most.
CREATE VIEW learnable AS
SELECT s.slot_start, s.subject, s.metric, s.window_s, s.targets, s.p50, s.p90, s.p99, s.top, a.attack_share
FROM slots s
JOIN slot_attacks a ON a.slot_start = s.slot_start
CROSS JOIN clock c
LEFT ANTI JOIN history h
  ON h.slot_start = s.slot_start AND h.subject = s.subject AND h.metric = s.metric AND h.window_s = s.window_s
WHERE unix_seconds(c.now) >= unix_seconds(s.slot_start) + 900;
