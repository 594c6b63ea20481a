"""Nexmark's queries in plain Spark SQL, over its three relations and a side table.

The formulations are our own; each result is determined by the rows alone. They differ from the original
in four ways: q12 counts by windows of event time, since windows of processing time depend on when it
runs; q6 decides by the latest bid, not by a clock, whether an auction is closed; q14 needs no
user-defined function; q2 selects one auction in three, so that few events give some rows.
"""

from __future__ import annotations

from pyspark.sql.pandas.types import from_arrow_schema

from eddyline.source.nexmark import AUCTION, BID, KINDS, PERSON

RELATIONS = {"person": PERSON, "auction": AUCTION, "bid": BID}
COLUMNS = {name: from_arrow_schema(KINDS[kind].schema) for name, kind in RELATIONS.items()}

SIDE, SIDE_COLUMNS, SIDE_KEYS = "side", "key BIGINT, value STRING", 10

_OFFERS = """
    SELECT a.id, a.seller, a.category, a.expires, b.price, b.bidder, b.dateTime AS offered,
        row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.dateTime) AS place
    FROM auction a JOIN bid b ON a.id = b.auction AND b.dateTime BETWEEN a.dateTime AND a.expires
"""

_PRICE_CLASSES = """
    count(*) AS bids,
    count(*) FILTER (WHERE price < 10000) AS low_bids,
    count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS middle_bids,
    count(*) FILTER (WHERE price >= 1000000) AS high_bids
"""

_DISTINCT_CLASSES = """
    count(DISTINCT bidder) AS bidders,
    count(DISTINCT bidder) FILTER (WHERE price < 10000) AS low_bidders,
    count(DISTINCT bidder) FILTER (WHERE price >= 10000 AND price < 1000000) AS middle_bidders,
    count(DISTINCT bidder) FILTER (WHERE price >= 1000000) AS high_bidders,
    count(DISTINCT auction) AS auctions,
    count(DISTINCT auction) FILTER (WHERE price < 10000) AS low_auctions,
    count(DISTINCT auction) FILTER (WHERE price >= 10000 AND price < 1000000) AS middle_auctions,
    count(DISTINCT auction) FILTER (WHERE price >= 1000000) AS high_auctions
"""

QUERIES = {
    # the bids as they are
    "q0": "SELECT auction, bidder, price, dateTime, extra FROM bid",
    # prices in another currency
    "q1": "SELECT auction, bidder, 0.908 * price AS price, dateTime, extra FROM bid",
    # bids on some auctions
    "q2": "SELECT auction, price FROM bid WHERE auction % 3 = 0",
    # who sells in a category, in some states
    "q3": """
        SELECT p.name, p.city, p.state, a.id
        FROM auction a JOIN person p ON a.seller = p.id
        WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')
    """,
    # the average of the winning prices of a category
    "q4": """
        SELECT category, avg(final) AS average
        FROM (
            SELECT a.id, a.category, max(b.price) AS final
            FROM auction a JOIN bid b
                ON a.id = b.auction AND b.dateTime BETWEEN a.dateTime AND a.expires
            GROUP BY a.id, a.category
        )
        GROUP BY category
    """,
    # the auctions with most bids in the last ten seconds, each two seconds
    "q5": """
        WITH counts AS (
            SELECT auction, window(dateTime, '10 seconds', '2 seconds') AS span, count(*) AS bids
            FROM bid
            GROUP BY auction, window(dateTime, '10 seconds', '2 seconds')
        )
        SELECT span.start AS since, auction, bids
        FROM counts JOIN (SELECT span AS most_span, max(bids) AS most FROM counts GROUP BY span)
            ON span = most_span AND bids = most
    """,
    # the average price of a seller's last ten closed auctions
    "q6": f"""
        SELECT seller, id, expires, avg(price) OVER (
            PARTITION BY seller ORDER BY expires, id ROWS BETWEEN 9 PRECEDING AND CURRENT ROW
        ) AS average
        FROM ({_OFFERS})
        WHERE place = 1 AND expires <= (SELECT max(dateTime) FROM bid)
    """,
    # the highest bids of each ten seconds
    "q7": """
        SELECT b.auction, b.price, b.bidder, b.dateTime, b.extra
        FROM bid b JOIN (
            SELECT window(dateTime, '10 seconds') AS span, max(price) AS highest
            FROM bid
            GROUP BY window(dateTime, '10 seconds')
        ) m ON b.price = m.highest AND b.dateTime >= m.span.start AND b.dateTime < m.span.end
    """,
    # persons who opened an auction in the ten-second window in which they registered
    "q8": """
        SELECT p.id, p.name, p.since
        FROM (
            SELECT id, name, window(dateTime, '10 seconds').start AS since FROM person
        ) p JOIN (
            SELECT DISTINCT seller, window(dateTime, '10 seconds').start AS since FROM auction
        ) a ON p.id = a.seller AND p.since = a.since
    """,
    # the winning bid of each auction
    "q9": f"SELECT id, category, expires, price, bidder, offered FROM ({_OFFERS}) WHERE place <= 1",
    # bids with the day and minute that partition the output
    "q10": """
        SELECT auction, bidder, price, dateTime, date_format(dateTime, 'yyyy-MM-dd') AS day,
            date_format(dateTime, 'HH:mm') AS minute
        FROM bid
    """,
    # bids per session of a bidder; a session ends after ten seconds without a bid
    "q11": """
        SELECT bidder, count(*) AS bids, min(dateTime) AS since, max(dateTime) AS until
        FROM (
            SELECT bidder, dateTime,
                sum(fresh) OVER (PARTITION BY bidder ORDER BY dateTime) AS visit
            FROM (
                SELECT bidder, dateTime, CASE WHEN dateTime < INTERVAL 10 SECONDS
                    + lag(dateTime) OVER (PARTITION BY bidder ORDER BY dateTime)
                    THEN 0 ELSE 1 END AS fresh
                FROM bid
            )
        )
        GROUP BY bidder, visit
    """,
    # q11 with Spark's session windows
    "q11_session": """
        SELECT bidder, count(*) AS bids, session_window.start AS since, session_window.end AS until
        FROM bid
        GROUP BY bidder, session_window(dateTime, '10 seconds')
    """,
    # bids per bidder in windows of ten seconds of event time
    "q12": """
        SELECT bidder, count(*) AS bids, span.start AS since, span.end AS until
        FROM (SELECT bidder, window(dateTime, '10 seconds') AS span FROM bid)
        GROUP BY bidder, span
    """,
    # bids joined with the side table
    "q13": f"""
        SELECT b.auction, b.bidder, b.price, b.dateTime, s.value
        FROM bid b JOIN {SIDE} s ON b.auction % {SIDE_KEYS} = s.key
    """,
    # bids between two prices, with the time of day and the number of letters "c"
    "q14": """
        SELECT auction, bidder, 0.908 * price AS price,
            CASE
                WHEN hour(dateTime) BETWEEN 8 AND 18 THEN 'day'
                WHEN hour(dateTime) <= 6 OR hour(dateTime) >= 20 THEN 'night'
                ELSE 'other'
            END AS part_of_day,
            dateTime, extra, length(extra) - length(replace(extra, 'c', '')) AS letters_c
        FROM bid
        WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000
    """,
    # bids, bidders and auctions of each day, by classes of price
    "q15": f"""
        SELECT date_format(dateTime, 'yyyy-MM-dd') AS day, {_PRICE_CLASSES}, {_DISTINCT_CLASSES}
        FROM bid
        GROUP BY date_format(dateTime, 'yyyy-MM-dd')
    """,
    # q15 per channel, and its last minute
    "q16": f"""
        SELECT channel, date_format(dateTime, 'yyyy-MM-dd') AS day,
            max(date_format(dateTime, 'HH:mm')) AS minute, {_PRICE_CLASSES}, {_DISTINCT_CLASSES}
        FROM bid
        GROUP BY channel, date_format(dateTime, 'yyyy-MM-dd')
    """,
    # bids and prices of each auction and day
    "q17": f"""
        SELECT auction, date_format(dateTime, 'yyyy-MM-dd') AS day, {_PRICE_CLASSES},
            min(price) AS lowest, max(price) AS highest, avg(price) AS average, sum(price) AS total
        FROM bid
        GROUP BY auction, date_format(dateTime, 'yyyy-MM-dd')
    """,
    # the last bid of each bidder on an auction
    "q18": """
        SELECT auction, bidder, price, channel, dateTime
        FROM (
            SELECT *, row_number() OVER (PARTITION BY bidder, auction ORDER BY dateTime DESC) AS place
            FROM bid
        )
        WHERE place <= 1
    """,
    # the ten highest bids of each auction
    "q19": """
        SELECT auction, bidder, price, dateTime, place
        FROM (
            SELECT *,
                row_number() OVER (PARTITION BY auction ORDER BY price DESC, dateTime) AS place
            FROM bid
        )
        WHERE place <= 10
    """,
    # bids with their auctions, of one category
    "q20": """
        SELECT b.auction, b.bidder, b.price, b.channel, b.url, b.dateTime, a.itemName,
            a.description, a.initialBid, a.reserve, a.expires, a.seller
        FROM bid b JOIN auction a ON b.auction = a.id
        WHERE a.category = 10
    """,
    # channels by number, from their names or addresses
    "q21": """
        SELECT *
        FROM (
            SELECT auction, bidder, price, channel, CASE lower(channel)
                WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2'
                WHEN 'baidu' THEN '3' ELSE regexp_extract(url, '[&?]channel_id=([^&]*)', 1)
            END AS channel_id
            FROM bid
        )
        WHERE channel_id <> ''
    """,
    # the folders of the addresses
    "q22": """
        SELECT auction, bidder, price, channel, split_part(url, '/', 4) AS folder1,
            split_part(url, '/', 5) AS folder2, split(url, '/')[5] AS folder3
        FROM bid
    """,
    # bids of persons who also sell
    "q23": """
        SELECT b.auction, b.price, b.dateTime, p.name, p.state, a.id AS own, a.itemName
        FROM bid b JOIN person p ON p.id = b.bidder JOIN auction a ON a.seller = p.id
    """,
}

SAMPLE = ("q4", "q5", "q9", "q11_session", "q18")
"""Queries for quick tests: joins, windows, sessions and rankings."""
