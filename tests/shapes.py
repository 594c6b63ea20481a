"""The catalogue of query shapes: every operator, and combinations of them, over a few small tables.

The rows of the tables determine each result: orders are total, sums of doubles are exact (multiples of
a quarter), and nothing depends on a choice that SQL leaves open. A later shape may read an earlier one
by its name, as a view on a view.
"""

from __future__ import annotations

TABLES: dict[str, tuple[str, tuple[str, ...]]] = {
    "t": (
        "id INT, k STRING, g INT, b BIGINT, x DOUBLE, d DECIMAL(10,2), day DATE, ts TIMESTAMP,"
        " a ARRAY<INT>, s STRUCT<p: INT, q: STRING>, m MAP<STRING, INT>, f BOOLEAN",
        (),
    ),
    "u": ("id INT, k STRING, v INT, y DOUBLE", ()),
    "p": ("id INT, k STRING, v INT", ("id",)),
    # rarer types, with column names that the engine uses internally
    "odd": (
        "w FLOAT, h TINYINT, c0 SMALLINT, bucket BINARY, seq TIMESTAMP_NTZ, side DECIMAL(38,10),"
        " `a b` STRING, `Mixed.Case` STRING",
        (),
    ),
}
STREAM = "e"  # append-only
STREAM_COLUMNS = "k STRING, v INT, n BIGINT, ts TIMESTAMP"

STATELESS = {
    "filter": "SELECT id, k, x FROM t WHERE g > 1 AND k IS NOT NULL",
    "project": "SELECT id + 1 AS i, upper(k) AS k, x * 2 AS x, d / 3 AS d, ts + INTERVAL 1 DAY AS ts FROM t",
    "case": "SELECT id, CASE WHEN g = 1 THEN 'one' WHEN x > 1 THEN 'big' END AS c,"
    " coalesce(k, '-') AS k FROM t",
    "nested_types": "SELECT id, a, s, m, s.p AS p, get(a, 0) AS a0, try_element_at(m, 'a') AS ma,"
    " struct(x, d) AS z, array(x, -0.0D) AS y, map('k', x) AS w FROM t",
    "explode": "SELECT id, explode(a) AS one FROM t",
    "posexplode": "SELECT id, place, one FROM t LATERAL VIEW posexplode(a) z AS place, one",
    "lateral_outer": "SELECT id, k, one FROM t LATERAL VIEW OUTER explode(a) z AS one",
    "explode_map": "SELECT id, key, value FROM t LATERAL VIEW explode(m) z",
    "inline": "SELECT id, p, q FROM t LATERAL VIEW inline(array(s, struct(g AS p, k AS q))) z AS p, q",
    "stack": "SELECT id, n, z FROM t LATERAL VIEW stack(2, 1, k, 2, s.q) z AS n, z",
    "union_all": "SELECT id, k FROM t UNION ALL SELECT id, k FROM u UNION ALL SELECT v, k FROM u",
    "union_distinct": "SELECT g AS a, k FROM t UNION SELECT v, k FROM u",
    "union_structs": "SELECT struct(id AS a, k AS b) AS s, array(struct(g AS a)) AS l FROM t"
    " UNION ALL SELECT struct(v AS b, k AS a), array(struct(id AS z)) FROM u",
    "union_same_twice": "SELECT g, x FROM t WHERE g = 1 UNION ALL SELECT g, x FROM t WHERE x > 0",
    "constant": "SELECT 1 AS one, 'a' AS a, CAST(NULL AS INT) AS n",
    "values": "SELECT * FROM VALUES (1, 'a'), (2, NULL), (2, NULL) AS z(n, s)",
    "range": "SELECT id FROM range(5)",
    "union_constant": "SELECT k, g FROM t UNION ALL VALUES ('z', 0), ('z', 0)",
    "nothing": "SELECT id, k FROM t WHERE 1 = 0",
    "empty_columns": "SELECT 7 AS seven FROM t WHERE g = 1",
}

AGGREGATES = {
    "count_sum_avg": "SELECT g, count(*) AS n, count(x) AS nx, sum(b) AS sb, avg(b) AS ab, sum(x) AS sx,"
    " avg(x) AS ax, sum(d) AS sd, avg(d) AS ad, sum(id) AS si, avg(id) AS ai FROM t GROUP BY g",
    "aggregate_filter": "SELECT k, count(*) FILTER (WHERE g > 1) AS n, sum(x) FILTER (WHERE f) AS sx,"
    " sum(d) FILTER (WHERE id > 2) AS sd FROM t GROUP BY k",
    "group_by_two": "SELECT k, g, count(*) AS n, sum(b) AS sb FROM t GROUP BY k, g",
    "group_by_double": "SELECT x, count(*) AS n, sum(b) AS s FROM t GROUP BY x",
    "group_by_double_exact": "SELECT x, sum(x) AS s FROM t GROUP BY x",
    "group_by_expression": "SELECT g % 2 AS odd, length(k) AS l, count(*) + 1 AS n FROM t"
    " GROUP BY g % 2, length(k)",
    "group_by_struct": "SELECT s, sum(id) AS n FROM t GROUP BY s",
    "group_by_struct_double": "SELECT struct(x, k) AS xk, sum(x) AS n, count(*) AS c FROM t"
    " GROUP BY struct(x, k)",
    "group_by_array": "SELECT a, count(*) AS n FROM t GROUP BY a",
    "group_by_temporal": "SELECT day, date_trunc('hour', ts) AS hour, count(*) AS n FROM t GROUP BY 1, 2",
    "group_by_decimal": "SELECT d, count(*) AS n, max(k) AS k FROM t GROUP BY d",
    "group_by_boolean": "SELECT f, x > 0 AS pos, sum(b) AS s FROM t GROUP BY f, x > 0",
    "no_group_columns": "SELECT count(*) AS n FROM t GROUP BY k",
    "having": "SELECT k, sum(b) AS s FROM t GROUP BY k HAVING count(*) > 1 AND sum(b) > 0",
    "distinct": "SELECT DISTINCT k, g FROM t",
    "distinct_double": "SELECT DISTINCT x FROM t",
    "distinct_nested": "SELECT DISTINCT a, s FROM t",
    "count_distinct": "SELECT g, count(DISTINCT k) AS nk FROM t GROUP BY g",
    "count_distinct_two": "SELECT g, count(DISTINCT k, b) AS nkb FROM t GROUP BY g",
    "distinct_mixed": "SELECT g, count(DISTINCT k) AS nk, sum(DISTINCT b) AS sb, avg(DISTINCT x) AS ax,"
    " count(*) AS n, sum(x) AS sx FROM t GROUP BY g",
    "distinct_filter": "SELECT k, count(DISTINCT g) FILTER (WHERE f) AS n,"
    " count(DISTINCT g) FILTER (WHERE NOT f) AS m, count(DISTINCT g) AS a FROM t GROUP BY k",
    "distinct_filters": "SELECT g, count(DISTINCT x) FILTER (WHERE f) AS a, sum(DISTINCT x) FILTER (WHERE b > 1) AS b,"
    " avg(DISTINCT x) FILTER (WHERE f) AS c, count(DISTINCT k, b) FILTER (WHERE f) AS d,"
    " count(DISTINCT k, b) AS e FROM t GROUP BY g",
    "distinct_filters_global": "SELECT count(DISTINCT k) FILTER (WHERE f) AS a, count(DISTINCT k) FILTER (WHERE NOT f) AS b"
    " FROM t",
    "distinct_global": "SELECT count(DISTINCT k) AS nk, count(DISTINCT x) AS nx, sum(b) AS s FROM t",
    "min_max": "SELECT g, min(b) AS mb, max(x) AS mx, min(x) AS nx, max(d) AS md, min(k) AS mk,"
    " max(ts) AS mt, min(day) AS dd, max(s) AS ms FROM t GROUP BY g",
    "min_max_append": "SELECT k, min(v) AS lo, max(v) AS hi, max(ts) AS ts, count(*) AS n FROM e GROUP BY k",
    "min_max_append_global": "SELECT min(v) AS lo, max(n) AS hi, min(k) AS k FROM e",
    "append_counts": "SELECT k, date_trunc('day', ts) AS day, count(*) AS c, sum(n) AS s, avg(v) AS a"
    " FROM e GROUP BY k, date_trunc('day', ts)",
    "collect_list": "SELECT g, sort_array(collect_list(b)) AS l, sort_array(collect_set(k)) AS s"
    " FROM t GROUP BY g",
    "collect_structs": "SELECT k, sort_array(collect_list(struct(id, b, d))) AS l FROM t GROUP BY k",
    "percentile": "SELECT g, percentile(b, 0.5) AS m, percentile(x, array(0.25, 0.75)) AS q,"
    " percentile_approx(b, 0.5) AS pa, median(id) AS md FROM t GROUP BY g",
    "approx_distinct": "SELECT k, approx_count_distinct(b) AS n FROM t GROUP BY k",
    "first_last": "SELECT g, first(g) AS a, last(g) AS b, any_value(g) AS c FROM t GROUP BY g",
    "max_by": "SELECT g, max_by(id, struct(b, id)) AS hi, min_by(k, struct(id, k)) AS lo FROM t GROUP BY g",
    "mode": "SELECT k, mode(g, true) AS m FROM t GROUP BY k",
    "variance": "SELECT g, variance(b) AS v, stddev(b) AS s, var_pop(id) AS vp, stddev_pop(d) AS sp,"
    " skewness(b) AS sk, kurtosis(id) AS ku FROM t WHERE b < 1000 GROUP BY g",
    "correlation": "SELECT k, corr(id, g) AS c, covar_pop(id, g) AS cp, covar_samp(id, g) AS cs,"
    " regr_count(id, g) AS rc, regr_slope(id, g) AS rs FROM t GROUP BY k",
    "booleans": "SELECT g, bool_and(f) AS ba, bool_or(f) AS bo, every(f) AS ev, some(f) AS so,"
    " count_if(f) AS ci FROM t GROUP BY g",
    "bits": "SELECT g, bit_xor(b) AS x, bit_and(b) AS a, bit_or(b) AS o, bit_xor(id) AS xi FROM t GROUP BY g",
    "product_text": "SELECT g, listagg(k, ',') WITHIN GROUP (ORDER BY k) AS l FROM t GROUP BY g",
    "map_aggregate": "SELECT g, max_by(m, struct(id, b, d, x, k, day, ts)) IS NULL AS l,"
    " map_from_entries(array_sort(collect_set(struct(k AS key, 1 AS value)))) AS z"
    " FROM t WHERE k IS NOT NULL GROUP BY g",
    "global_linear": "SELECT count(*) AS n, sum(b) AS s, avg(x) AS a, sum(d) AS d FROM t",
    "global_empty": "SELECT count(*) AS n, sum(b) AS s, max(x) AS m, collect_list(g) AS l FROM t WHERE g > 99",
    "global_empty_linear": "SELECT count(*) AS n, sum(b) AS s, avg(x) AS a FROM t WHERE g > 99",
    "global_distinct_list": "SELECT listagg(DISTINCT k, ',') WITHIN GROUP (ORDER BY k DESC NULLS FIRST) AS l,"
    " listagg(k) WITHIN GROUP (ORDER BY k, id) AS a, count(*) AS n FROM t",
    "global_list_and_distinct": "SELECT listagg(k, ',') WITHIN GROUP (ORDER BY k) AS l, count(DISTINCT b) AS n, sum(DISTINCT b) AS s FROM t",
    "global_distinct_numbers": "SELECT listagg(DISTINCT b, ';') WITHIN GROUP (ORDER BY b) AS l FROM t",
    "global_generic": "SELECT max(b) AS m, count(*) AS n, sort_array(collect_list(g)) AS l, 7 AS c FROM t",
    "global_having": "SELECT sum(id) AS s FROM u HAVING count(*) > 3",
    "rollup": "SELECT k, g, count(*) AS n, sum(x) AS sx FROM t GROUP BY ROLLUP (k, g)",
    "cube": "SELECT k, f, sum(b) AS s, grouping(k) AS gk, grouping_id() AS gi FROM t GROUP BY CUBE (k, f)",
    "grouping_sets": "SELECT g, k, f, max(b) AS m FROM t GROUP BY GROUPING SETS ((g), (k, f), ())",
    "rollup_distinct": "SELECT g, count(DISTINCT k) AS n FROM t GROUP BY ROLLUP (g)",
    "pivot": "SELECT * FROM (SELECT k, g, b FROM t) PIVOT (sum(b) AS s FOR g IN (1 AS one, 2 AS two))",
    "unpivot": "SELECT * FROM (SELECT id, g, length(k) AS v FROM t) UNPIVOT (val FOR name IN (g, v))",
    "except": "SELECT k, g FROM t EXCEPT SELECT k, v FROM u",
    "except_all": "SELECT k, g FROM t EXCEPT ALL SELECT k, v FROM u",
    "intersect": "SELECT k, g FROM t INTERSECT SELECT k, v FROM u",
    "intersect_all": "SELECT k, g FROM t INTERSECT ALL SELECT k, v FROM u",
    "except_doubles": "SELECT x FROM t EXCEPT SELECT y FROM u",
    "intersect_doubles": "SELECT x, k FROM t INTERSECT ALL SELECT y, k FROM u",
    "two_level": "SELECT n, count(*) AS c FROM (SELECT k, count(*) AS n FROM t GROUP BY k) GROUP BY n",
    "three_level": "SELECT c, count(*) AS z, max(n) AS m FROM (SELECT n, count(*) AS c FROM"
    " (SELECT k, g, count(*) AS n FROM t GROUP BY k, g) GROUP BY n) GROUP BY c",
    "sum_of_max": "SELECT sum(m) AS s, avg(x) AS a FROM (SELECT g, max(b) AS m, min(x) AS x FROM t GROUP BY g)",
    "aggregate_of_explode": "SELECT one, count(*) AS n, sum(g) AS s FROM t LATERAL VIEW explode(a) z AS one"
    " GROUP BY one",
    "avg_of_global": "SELECT n + 1 AS n, m IS NULL AS z FROM (SELECT count(*) AS n, max(x) AS m FROM t)",
}

JOINS = {
    "inner": "SELECT t.id, u.id AS uid, t.k, v FROM t JOIN u ON t.k = u.k",
    "inner_two_keys": "SELECT t.id, u.v, y FROM t JOIN u ON t.k = u.k AND t.g = u.v",
    "inner_residual": "SELECT t.id, u.v FROM t JOIN u ON t.k = u.k AND t.g < u.v",
    "inner_double": "SELECT t.id, t.x, u.y FROM t JOIN u ON t.x = u.y",
    "inner_expression": "SELECT t.id, u.id AS uid FROM t JOIN u ON t.g + 1 = u.v AND upper(t.k) = upper(u.k)",
    "left": "SELECT t.id, t.k, u.v, u.y FROM t LEFT JOIN u ON t.k = u.k",
    "right": "SELECT t.id, u.k, u.v FROM t RIGHT JOIN u ON t.k = u.k",
    "full": "SELECT t.id, t.k, u.k AS uk, u.v FROM t FULL JOIN u ON t.k = u.k",
    "full_using": "SELECT k, t.g, u.v FROM t FULL JOIN u USING (k)",
    "full_double": "SELECT t.id, t.x, u.y FROM t FULL JOIN u ON t.x = u.y",
    "left_residual": "SELECT t.id, t.g, u.v FROM t LEFT JOIN u ON t.k = u.k AND t.g < u.v",
    "left_own_condition": "SELECT t.id, t.g, u.v FROM t LEFT JOIN u ON t.k = u.k AND t.g > 1 AND u.v > 1",
    "right_residual": "SELECT t.id, t.g, u.v, u.y FROM t RIGHT JOIN u ON t.k = u.k AND t.g < u.v",
    "full_residual": "SELECT t.id, t.g, u.id AS uid, u.v FROM t FULL JOIN u ON t.k = u.k AND t.g < u.v",
    "full_one_sided": "SELECT t.id, u.id AS uid FROM t FULL JOIN u ON t.k = u.k AND t.g = 1",
    "left_theta": "SELECT t.id, u.v FROM t LEFT JOIN u ON t.g < u.v AND u.y > 1",
    "full_theta": "SELECT t.id, u.v FROM t FULL JOIN u ON t.g > u.v + 2",
    "left_nested": "SELECT t.id, t.m, t.a, u.v FROM t LEFT JOIN u ON t.k = u.k AND t.g <> u.v",
    "semi": "SELECT id, k, x FROM t LEFT SEMI JOIN u ON t.k = u.k",
    "anti": "SELECT id, k, x FROM t LEFT ANTI JOIN u ON t.k = u.k",
    "semi_residual": "SELECT id, k FROM t LEFT SEMI JOIN u ON t.k = u.k AND t.g < u.v",
    "anti_residual": "SELECT id, k, m FROM t LEFT ANTI JOIN u ON t.k = u.k AND t.g < u.v",
    "anti_own_condition": "SELECT id, k FROM t LEFT ANTI JOIN u ON t.k = u.k AND t.g > 1",
    "semi_text": "SELECT id, k, g FROM t LEFT SEMI JOIN u ON t.g = u.v AND t.k < u.k",
    "left_distinct": "SELECT t.id, t.g, u.v FROM t LEFT JOIN u ON t.k = u.k AND t.g IS DISTINCT FROM u.v",
    "left_wider": "SELECT t.id, t.b, u.v FROM t LEFT JOIN u ON t.k = u.k AND t.b >= u.v AND t.d < u.y",
    "left_either": "SELECT t.id, t.g, u.v FROM t LEFT JOIN u ON t.k = u.k AND (t.g < u.v OR u.y > 1)",
    "right_doubles": "SELECT t.id, t.x, u.y FROM t RIGHT JOIN u ON t.k = u.k AND u.v > 1 AND t.x <= u.y",
    "full_two_tests": "SELECT t.id, u.id AS uid FROM t FULL JOIN u ON t.k = u.k AND t.g <> u.v AND t.x > u.y",
    "left_fails_for_pairs": "SELECT t.id, u.v FROM t LEFT JOIN u ON t.k = u.k AND t.g < u.v AND 1 / t.id > 0",
    "anti_theta": "SELECT id, g FROM t LEFT ANTI JOIN u ON t.g < u.v",
    "cross": "SELECT t.g, u.v FROM t CROSS JOIN u",
    "theta": "SELECT t.id, u.id AS uid FROM t JOIN u ON t.g < u.v",
    "null_safe": "SELECT t.id, u.v FROM t JOIN u ON t.k <=> u.k",
    "null_safe_left": "SELECT t.id, u.v FROM t LEFT JOIN u ON t.k <=> u.k AND t.x <=> u.y",
    "null_safe_anti": "SELECT t.id, t.k FROM t LEFT ANTI JOIN u ON t.k <=> u.k",
    "mixed_types": "SELECT t.id, u.v FROM t LEFT JOIN u ON t.b = u.v AND t.d = u.y",
    "self_join": "SELECT a.id, b.id AS bid FROM t a JOIN t b ON a.k = b.k AND a.id < b.id",
    "self_left": "SELECT a.id, b.g FROM u c JOIN t a ON c.k = a.k LEFT JOIN t b ON a.g = b.id",
    "three_tables": "SELECT t.id, u.v, p.v AS pv FROM t JOIN u ON t.k = u.k LEFT JOIN p ON u.id = p.id",
    "left_left": "SELECT t.id, u.v, p.v AS pv FROM t LEFT JOIN u ON t.k = u.k LEFT JOIN p ON u.v = p.id",
    "struct_key": "SELECT t.id, u.v FROM t LEFT JOIN u ON t.s = struct(u.id, u.k)",
    "diamond": "WITH c AS (SELECT k, sum(b) AS s, count(*) AS n FROM t GROUP BY k)"
    " SELECT a.k, a.s, b.n FROM c a JOIN c b ON a.n = b.n AND a.k <> b.k",
    "diamond_total": "WITH c AS (SELECT k, count(*) AS n FROM t GROUP BY k)"
    " SELECT k, n, n / (SELECT sum(n) FROM c) AS share FROM c",
    "aggregate_of_join": "SELECT u.v, count(*) AS n, sum(t.b) AS s, max(t.x) AS m FROM t JOIN u ON t.k = u.k"
    " GROUP BY u.v",
    "aggregate_of_left": "SELECT t.g, count(u.v) AS n, count(*) AS c, sum(u.y) AS s FROM t"
    " LEFT JOIN u ON t.k = u.k GROUP BY t.g",
    "join_of_aggregates": "SELECT a.k, a.n, b.s FROM (SELECT k, count(*) AS n FROM t GROUP BY k) a"
    " FULL JOIN (SELECT k, sum(v) AS s FROM u GROUP BY k) b ON a.k = b.k",
    "join_of_distinct": "SELECT a.k, b.v FROM (SELECT DISTINCT k FROM t) a LEFT JOIN"
    " (SELECT DISTINCT k, v FROM u) b ON a.k = b.k",
    "lateral_join": "SELECT t.id, z.s FROM t, LATERAL (SELECT sum(v) AS s FROM u WHERE u.k = t.k) z",
    "lateral_top": "SELECT t.id, z.v FROM t, LATERAL (SELECT v FROM u WHERE u.k = t.k ORDER BY y, id, v LIMIT 2) z",
    "lateral_rest": "SELECT t.id, z.w FROM t LEFT JOIN LATERAL"
    " (SELECT v + t.g AS w FROM u WHERE u.k = t.k ORDER BY id DESC, y, v LIMIT 2 OFFSET 1) z",
    "stream_join": "SELECT e.v, t.g FROM e JOIN t ON e.k = t.k",
    "stream_left": "SELECT e.v, e.n, p.v AS pv FROM e LEFT JOIN p ON e.v = p.id",
    "constant_join": "SELECT t.id, z.name FROM t LEFT JOIN VALUES (1, 'one'), (2, 'two') z(g, name)"
    " ON t.g = z.g",
}

SUBQUERIES = {
    "in": "SELECT id, k FROM t WHERE k IN (SELECT k FROM u WHERE v > 1)",
    "not_in": "SELECT id, k FROM t WHERE g NOT IN (SELECT v FROM u WHERE v IS NOT NULL)",
    "not_in_null": "SELECT id, k FROM t WHERE g NOT IN (SELECT v FROM u WHERE y > 0)",
    "exists": "SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.k = t.k AND u.v >= t.g)",
    "not_exists": "SELECT id, k FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.k = t.k)",
    "exists_uncorrelated": "SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u WHERE v > 3)",
    "not_exists_uncorrelated": "SELECT id FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE v > 3)",
    "not_in_itself": "SELECT id, g FROM t WHERE g NOT IN (SELECT v FROM u WHERE v < 4) AND k NOT IN (SELECT k FROM u)",
    "not_in_correlated": "SELECT id, g FROM t WHERE g NOT IN (SELECT v FROM u WHERE u.k = t.k)",
    "not_in_pairs": "SELECT id, g, k FROM t WHERE (g, k) NOT IN (SELECT v, k FROM u)",
    "not_in_or": "SELECT id, g FROM t WHERE k = 'a' OR g NOT IN (SELECT v FROM u WHERE id > 2)",
    "exists_other": "SELECT id, k, g FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.k = t.k AND u.v <> t.g)"
    " AND NOT EXISTS (SELECT 1 FROM u WHERE u.k = t.k AND u.v <> t.g AND u.y > 1)",
    "exists_or": "SELECT id, g FROM t WHERE g = 1 OR EXISTS (SELECT 1 FROM u WHERE u.k = t.k)",
    "in_or": "SELECT id FROM t WHERE x > 1 OR k IN (SELECT k FROM u)",
    "exists_select": "SELECT id, k IN (SELECT k FROM u WHERE k IS NOT NULL) AS known FROM t",
    "scalar_select": "SELECT id, (SELECT max(v) FROM u) AS m FROM t",
    "exists_one": "SELECT id, k FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.k = t.k AND u.v > 1 LIMIT 1)",
    "scalar_latest": "SELECT id, (SELECT v FROM u WHERE u.k = t.k ORDER BY y DESC, id DESC, v LIMIT 1) AS m FROM t",
    "scalar_where": "SELECT id, b FROM t WHERE b > (SELECT avg(v) FROM u)",
    "scalar_having": "SELECT k, count(*) AS n FROM t GROUP BY k HAVING count(*) >= (SELECT count(*) / 4 FROM u)",
    "scalar_two": "SELECT id FROM t WHERE b BETWEEN (SELECT min(v) FROM u) AND (SELECT max(v) + 1 FROM u)",
    "scalar_in_aggregate": "SELECT g, sum(b + (SELECT count(*) FROM u)) AS s FROM t GROUP BY g",
    "never_joined": "SELECT t.id, u.v FROM t FULL JOIN u ON t.k <=> u.k AND 'a' IS NULL",
    "never_of_two": "SELECT t.k, max(u.v) AS v FROM t LEFT JOIN u ON 1 = 0 GROUP BY t.k",
    "scalar_beside_aggregate": "SELECT count(*) AS n, (SELECT max(v) FROM u) AS m FROM t WHERE g = 1",
    "scalar_beside_groups": "SELECT k, sum(b + (SELECT min(v) FROM u)) - (SELECT count(*) FROM u) AS s,"
    " (SELECT max(v) FROM u) + g AS m FROM t GROUP BY k, g",
    "scalar_grouped_by": "SELECT b > (SELECT avg(v) FROM u) AS more, (SELECT avg(v) FROM u) AS a,"
    " count(DISTINCT x) AS n FROM t GROUP BY b > (SELECT avg(v) FROM u)",
    "scalar_beside_distinct": "SELECT DISTINCT k, (SELECT max(v) FROM u) AS m FROM t",
    "scalar_beside_session": "SELECT session_window(ts, '1 hour').start AS s, collect_set(g) AS gs,"
    " (SELECT count(*) FROM u) AS n FROM t GROUP BY session_window(ts, '1 hour')",
    "scalar_over_top": "SELECT id, (SELECT count(DISTINCT 1) FROM u) AS n FROM"
    " (SELECT id, b, k FROM t ORDER BY b NULLS LAST, k, id LIMIT 4 OFFSET 1)",
    "scalar_over_top_twice": "SELECT id, m + b AS x, m - b AS y FROM (SELECT id, b, (SELECT max(v) FROM u) AS m"
    " FROM (SELECT * FROM t ORDER BY b NULLS LAST, k, id LIMIT 3)) LIMIT 9",
    "scalar_of_key": "SELECT id, b - (SELECT v FROM p WHERE id = 3) AS z FROM t WHERE g > 1",
    "scalar_of_key_compared": "SELECT id, k FROM t WHERE g = (SELECT v FROM p WHERE id = 2)",
    "scalar_per_row": "SELECT id, g, (SELECT k FROM p WHERE p.id = t.g) AS pk FROM t",
    "scalar_per_row_compared": "SELECT id, k FROM t WHERE k <= (SELECT k FROM p WHERE p.id = t.g AND p.v < t.id)",
    "scalar_per_row_between": "SELECT id, g, b, (SELECT v FROM p WHERE p.id < t.g + 1 AND p.id >= t.g) AS v FROM t",
    "scalar_orders": "SELECT id, k, b FROM t ORDER BY abs(b - (SELECT max(v) FROM u)), id, k, b LIMIT 3",
    "scalar_over_sorted": "SELECT id, k, (SELECT min(v) FROM u) AS m FROM (SELECT * FROM t ORDER BY id)",
    "scalar_top": "SELECT id, (SELECT v FROM u ORDER BY v DESC NULLS LAST, id LIMIT 1) AS m FROM t",
    "scalar_case": "SELECT id, CASE WHEN g > (SELECT avg(v) FROM u) THEN 'hi' ELSE 'lo' END AS c FROM t",
    "scalar_join_condition": "SELECT t.id, u.v FROM t LEFT JOIN u ON t.k = u.k"
    " AND u.v > (SELECT avg(v) FROM u)",
    "correlated": "SELECT id, (SELECT sum(v) FROM u WHERE u.k = t.k) AS s FROM t",
    "correlated_count": "SELECT id, (SELECT count(*) FROM u WHERE u.k = t.k) AS n FROM t",
    "correlated_where": "SELECT id, b FROM t WHERE b >= (SELECT avg(v) FROM u WHERE u.k = t.k)",
    "correlated_self": "SELECT id, b FROM t o WHERE b = (SELECT max(b) FROM t i WHERE i.k = o.k)",
    "in_aggregate": "SELECT id FROM t WHERE k IN (SELECT k FROM u GROUP BY k HAVING count(*) > 1)",
}

WINDOWS = {
    "row_number": "SELECT g, b, id, row_number() OVER (PARTITION BY g ORDER BY b, id) AS r FROM t",
    "ranks": "SELECT g, b, rank() OVER w AS r, dense_rank() OVER w AS d, percent_rank() OVER w AS p,"
    " cume_dist() OVER w AS c FROM t WINDOW w AS (PARTITION BY g ORDER BY b DESC)",
    "ntile": "SELECT g, id, b, ntile(3) OVER (PARTITION BY g ORDER BY id, b) AS n FROM t",
    "lag_lead": "SELECT k, id, b, lag(b) OVER w AS a, lead(b, 2, -1) OVER w AS z FROM t"
    " WINDOW w AS (PARTITION BY k ORDER BY id, b)",
    "first_last_nth": "SELECT k, id, first_value(id) OVER w AS f, last_value(id) OVER w AS l,"
    " nth_value(id, 2) OVER w AS n FROM t WINDOW w AS (PARTITION BY k ORDER BY id"
    " ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)",
    "running_sum": "SELECT k, id, b, sum(b) OVER (PARTITION BY k ORDER BY id) AS s FROM t",
    "running_rows": "SELECT k, id, b, sum(b) OVER (PARTITION BY k ORDER BY id, b ROWS UNBOUNDED PRECEDING) AS s"
    " FROM t",
    "running_filter": "SELECT k, id, sum(b) FILTER (WHERE f) OVER w AS s, count(*) FILTER (WHERE f) OVER w AS n,"
    " count(b) FILTER (WHERE g > 1) OVER w AS nb, avg(d) FILTER (WHERE f) OVER w AS a, max(x) FILTER (WHERE g > 1) OVER w"
    " AS m FROM t WINDOW w AS (PARTITION BY k ORDER BY id)",
    "first_last_filter": "SELECT k, id, first_value(id) FILTER (WHERE f) OVER w AS a, last_value(id) FILTER (WHERE f) OVER w AS z,"
    " first_value(id) FILTER (WHERE f) OVER (PARTITION BY k ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED"
    " FOLLOWING) AS o FROM t WINDOW w AS (PARTITION BY k ORDER BY id)",
    "sliding_filter": "SELECT k, id, sum(b) FILTER (WHERE f) OVER w AS s, first_value(id) FILTER (WHERE f) OVER w AS o FROM t"
    " WINDOW w AS (PARTITION BY k ORDER BY id RANGE BETWEEN 2 PRECEDING AND CURRENT ROW)",
    "sliding_rows": "SELECT k, id, b, avg(b) OVER (PARTITION BY k ORDER BY id, b"
    " ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS a FROM t",
    "sliding_before": "SELECT g, id, b, sum(b) OVER w AS s, nth_value(b, 2) OVER w AS n FROM t"
    " WINDOW w AS (PARTITION BY g ORDER BY b DESC NULLS LAST, id ROWS BETWEEN 3 PRECEDING AND 2 PRECEDING)",
    "lag_of_lead": "SELECT k, id, b, lag(z) OVER (PARTITION BY k ORDER BY id, b) AS y FROM (SELECT k, id, b,"
    " lead(b, 2) OVER (PARTITION BY k ORDER BY id, b) AS z FROM t)",
    "lag_of_all": "SELECT k, id, b, id - lag(id, 1, 0) OVER (ORDER BY k, id, b) AS d FROM t",
    "lag_by_double": "SELECT g, x, lag(x) OVER (PARTITION BY g ORDER BY x DESC) AS y FROM"
    " (SELECT g, x + 0D AS x FROM t)",
    "lag_not_null": "SELECT k, id, b, lag(b) IGNORE NULLS OVER (PARTITION BY k ORDER BY id, b) AS a FROM t",
    "lag_and_rank": "SELECT k, id, b, lag(b) OVER w AS a, rank() OVER w AS r FROM t"
    " WINDOW w AS (PARTITION BY k ORDER BY id, b)",
    "gaps_between": "SELECT k, count(*) AS n, max(gap) AS m FROM (SELECT k, id - lag(id) OVER (PARTITION BY k"
    " ORDER BY id) AS gap FROM t) GROUP BY k",
    "sliding_range": "SELECT k, id, count(*) OVER (PARTITION BY k ORDER BY id"
    " RANGE BETWEEN 2 PRECEDING AND 1 FOLLOWING) AS n FROM t",
    "range_peers": "SELECT g, b, id, max(id) OVER (PARTITION BY g ORDER BY b DESC NULLS LAST"
    " RANGE BETWEEN CURRENT ROW AND CURRENT ROW) AS m FROM t",
    "range_days": "SELECT k, ts, count(*) OVER (PARTITION BY k ORDER BY ts"
    " RANGE BETWEEN INTERVAL 24 HOURS PRECEDING AND INTERVAL 1 HOUR FOLLOWING) AS n FROM t",
    "range_dates": "SELECT g, day, sum(id) OVER (PARTITION BY g ORDER BY day DESC"
    " RANGE BETWEEN 1 PRECEDING AND CURRENT ROW) AS s FROM t",
    "range_months": "SELECT k, ts, count(*) OVER (PARTITION BY k ORDER BY ts"
    " RANGE BETWEEN INTERVAL 1 MONTH PRECEDING AND CURRENT ROW) AS n FROM t",
    "range_time": "SELECT k, ts, sum(b) OVER (PARTITION BY k ORDER BY ts"
    " RANGE BETWEEN INTERVAL 1 HOUR PRECEDING AND CURRENT ROW) AS s FROM t",
    "whole_partition": "SELECT g, b, b - avg(b) OVER (PARTITION BY g) AS off, max(x) OVER (PARTITION BY g) AS m"
    " FROM t",
    "no_partition": "SELECT id, b, row_number() OVER (ORDER BY id, b) AS r FROM t",
    "whole_table": "SELECT id, count(*) OVER () AS n FROM t",
    "two_windows": "SELECT k, g, id, b, rank() OVER (PARTITION BY k ORDER BY b) AS rk,"
    " rank() OVER (PARTITION BY g ORDER BY b) AS rg FROM t",
    "two_orders": "SELECT k, id, b, rank() OVER (PARTITION BY k ORDER BY b) AS up,"
    " rank() OVER (PARTITION BY k ORDER BY b DESC) AS down FROM t",
    "top_of_group": "SELECT g, b, id FROM (SELECT g, b, id, row_number() OVER (PARTITION BY g"
    " ORDER BY b DESC, id) AS r FROM t) WHERE r <= 2",
    "rank_filter": "SELECT g, b FROM (SELECT g, b, rank() OVER (PARTITION BY g ORDER BY b) AS r FROM t)"
    " WHERE r <= 2",
    "dense_rank_filter": "SELECT g, b FROM (SELECT g, b, dense_rank() OVER (PARTITION BY g ORDER BY b) AS r"
    " FROM t) WHERE r < 3",
    "latest_of_key": "SELECT k, id, b FROM (SELECT *, row_number() OVER (PARTITION BY k ORDER BY ts DESC, id, b)"
    " AS r FROM t) WHERE r = 1",
    "qualify": "SELECT k, id, b FROM t QUALIFY row_number() OVER (PARTITION BY k ORDER BY id DESC, b) = 1",
    "first_with_its_number": "SELECT k, id, b, r, r + b AS s FROM (SELECT *, row_number() OVER"
    " (PARTITION BY k ORDER BY id DESC, b) AS r FROM t) WHERE r = 1",
    "first_ranks": "SELECT g, b, r, d FROM (SELECT g, b, rank() OVER w AS r, dense_rank() OVER w AS d FROM t"
    " WINDOW w AS (PARTITION BY g ORDER BY b)) WHERE r = 1",
    "first_rank_numbered": "SELECT g, b, r, n FROM (SELECT g, b, rank() OVER w AS r, row_number() OVER w AS n"
    " FROM (SELECT DISTINCT g, b FROM t) WINDOW w AS (PARTITION BY g ORDER BY b)) WHERE r <= 1",
    "first_and_sum": "SELECT k, id, n, s FROM (SELECT k, id, row_number() OVER w AS n, sum(b) OVER w AS s FROM t"
    " WINDOW w AS (PARTITION BY k ORDER BY id, b)) WHERE n = 1",
    "first_of_all": "SELECT id, b, r FROM (SELECT id, b, row_number() OVER (ORDER BY b, id) AS r FROM t) WHERE r < 2",
    "join_of_firsts": "SELECT x.k, x.id, u.v FROM (SELECT k, id, row_number() OVER (PARTITION BY k ORDER BY id DESC, b)"
    " AS r FROM t) x JOIN u ON x.k = u.k WHERE x.r = 1",
    "window_of_aggregate": "SELECT k, n, rank() OVER (ORDER BY n DESC) AS r FROM"
    " (SELECT k, count(*) AS n FROM t GROUP BY k)",
    "share_of_total": "SELECT k, sum(b) AS s, sum(sum(b)) OVER () AS total FROM t GROUP BY k",
    "aggregate_of_window": "SELECT r, count(*) AS n, sum(b) AS s FROM (SELECT b, rank() OVER"
    " (PARTITION BY g ORDER BY b) AS r FROM t) GROUP BY r",
    "window_of_join": "SELECT t.k, u.v, sum(t.b) OVER (PARTITION BY u.v ORDER BY t.id) AS s, t.id"
    " FROM t JOIN u ON t.k = u.k",
    "window_double": "SELECT x, id, count(*) OVER (PARTITION BY x) AS n FROM t",
    "window_collect": "SELECT g, id, sort_array(collect_set(k) OVER (PARTITION BY g)) AS ks FROM t",
    "join_of_window": "SELECT t.id, z.r FROM t JOIN (SELECT id, rank() OVER (ORDER BY v) AS r FROM u) z"
    " ON t.id = z.id",
    "gaps_islands": "SELECT k, min(id) AS lo, max(id) AS hi, count(*) AS n FROM (SELECT k, id, id -"
    " dense_rank() OVER (PARTITION BY k ORDER BY id) AS island FROM t) GROUP BY k, island",
    "near_and_running_of_equal_rows": "SELECT k, g, lag(g) OVER w AS l, row_number() OVER w AS n, sum(g) OVER"
    " (PARTITION BY k ORDER BY g ROWS UNBOUNDED PRECEDING) AS s FROM t WINDOW w AS (PARTITION BY k ORDER BY g)",
}

LIMITS = {
    "order_by": "SELECT id, k, x FROM t ORDER BY x DESC NULLS LAST, id",
    "order_limit": "SELECT id, b FROM t ORDER BY b DESC, id LIMIT 3",
    "order_limit_offset": "SELECT id, b FROM t ORDER BY b, id LIMIT 3 OFFSET 2",
    "order_offset": "SELECT id, b FROM t ORDER BY b, id OFFSET 4",
    "order_hidden": "SELECT k FROM t ORDER BY k NULLS LAST, id DESC LIMIT 4",
    "order_double": "SELECT x FROM t ORDER BY x DESC LIMIT 4",
    "order_decimal": "SELECT d, k FROM t ORDER BY d NULLS LAST, k DESC LIMIT 4",
    "order_time": "SELECT ts, day FROM t ORDER BY ts DESC, day LIMIT 3",
    "order_expression": "SELECT id, b FROM t ORDER BY b % 3, -b, id LIMIT 4",
    "limit_all": "SELECT k FROM t ORDER BY k LIMIT 1000",
    "limit_zero": "SELECT k FROM t ORDER BY k LIMIT 0",
    "limit_equal_rows": "SELECT 1 AS one FROM t LIMIT 3",
    "limit_of_aggregate": "SELECT k, count(*) AS n FROM t GROUP BY k ORDER BY n DESC, k LIMIT 2",
    "aggregate_of_limit": "SELECT count(*) AS n, sum(b) AS s FROM (SELECT b FROM t ORDER BY b LIMIT 3)",
    "limit_of_join": "SELECT t.id, u.v FROM t JOIN u ON t.k = u.k ORDER BY u.v DESC, t.id LIMIT 3",
    "join_of_limit": "SELECT t.id, z.v FROM t JOIN (SELECT k, v FROM u ORDER BY v, k LIMIT 2) z ON t.k = z.k",
    "limit_of_limit": "SELECT b FROM (SELECT b FROM t ORDER BY b DESC LIMIT 5) ORDER BY b LIMIT 2",
    "union_of_limits": "(SELECT id, b FROM t ORDER BY b, id LIMIT 2) UNION ALL"
    " (SELECT id, b FROM t ORDER BY b DESC, id LIMIT 2)",
    "limit_of_distinct": "SELECT DISTINCT k FROM t ORDER BY k DESC LIMIT 2",
    "limit_of_window": "SELECT k, id, s FROM (SELECT k, id, sum(b) OVER (PARTITION BY k ORDER BY id) AS s"
    " FROM t) ORDER BY s DESC, k, id LIMIT 4",
    "order_struct_out": "SELECT id, a, m, s FROM t ORDER BY id, b, x, d, k, g, ts, day, f LIMIT 100",
}

VIEWS_ON_VIEWS = {
    "v_base": "SELECT k, g, count(*) AS n, sum(b) AS s, avg(x) AS ax FROM t GROUP BY k, g",
    "v_second": "SELECT k, max(n) AS most, sum(s) AS s FROM v_base GROUP BY k",
    "v_third": "SELECT a.k, a.most, b.v FROM v_second a LEFT JOIN u b ON a.k = b.k",
    "v_ranked": "SELECT k, v, rank() OVER (ORDER BY most DESC) AS r FROM v_third",
    "v_self": "SELECT a.k, b.g FROM v_second a JOIN v_base b ON a.k = b.k AND a.most = b.n",
    "v_limited": "SELECT id, b FROM order_limit WHERE b > 0",
    "v_of_stream": "SELECT hi - lo AS d, count(*) AS n FROM min_max_append GROUP BY hi - lo",
    "v_filter": "SELECT k, v FROM e WHERE v > 0",
    "v_append_max": "SELECT k, max(v) AS m FROM v_filter GROUP BY k",
    "v_nested": "SELECT id, explode(a) AS one, m FROM nested_types",
}

KEYED = {
    "keyed_count": "SELECT k, count(*) AS n, sum(v) AS s FROM p GROUP BY k",
    "keyed_join": "SELECT p.id, p.v, u.y FROM p LEFT JOIN u ON p.id = u.id",
    "keyed_max": "SELECT k, max(v) AS m FROM p GROUP BY k",
    "keyed_rank": "SELECT id, v, rank() OVER (ORDER BY v DESC) AS r FROM p",
}

TYPES = {
    "types_rows": "SELECT *, w + h AS s, length(bucket) AS l FROM odd",
    "types_sums": "SELECT h, sum(w) AS w, avg(w) AS aw, sum(c0) AS c, avg(h) AS ah, sum(side) AS s,"
    " avg(side) AS sa, count(DISTINCT w) AS n FROM odd GROUP BY h",
    "types_extremes": "SELECT c0, max(bucket) AS b, min(seq) AS q, max(side) AS s, min(w) AS w,"
    " max(`a b`) AS ab, min(`Mixed.Case`) AS mc, bit_xor(c0) AS x FROM odd GROUP BY c0",
    "types_group_float": "SELECT w, count(*) AS n, sum(h) AS s FROM odd GROUP BY w",
    "types_group_bytes": "SELECT bucket, count(*) AS n, sum(w) AS s FROM odd GROUP BY bucket",
    "types_group_time": "SELECT seq, side, count(*) AS op, sum(h) AS epoch FROM odd GROUP BY seq, side",
    "types_group_text": "SELECT `a b`, `Mixed.Case` AS `x.y`, count(*) AS `the ``count``` FROM odd GROUP BY ALL",
    "types_join": "SELECT a.w AS w, b.h AS h, a.side AS side FROM odd a FULL JOIN odd b ON a.w = b.w AND a.c0 = b.h",
    "types_join_bytes": "SELECT a.h AS h, b.seq AS seq FROM odd a LEFT JOIN odd b ON a.bucket = b.bucket AND a.h < b.h",
    "types_distinct": "SELECT DISTINCT bucket, seq, w FROM odd",
    "types_top": "SELECT side, bucket, w, `a b` FROM odd ORDER BY side DESC, bucket, w DESC, `a b` LIMIT 3",
    "types_top_text": "SELECT `Mixed.Case`, seq, h FROM odd ORDER BY `Mixed.Case` DESC, seq, h LIMIT 3 OFFSET 1",
    "types_window": "SELECT w, h, sum(h) OVER (PARTITION BY w ORDER BY c0) AS s, c0 FROM odd",
    "types_dictionary": "SELECT h, map_from_entries(array_agg(struct(c0 AS k, 1 AS v))) IS NULL AS m,"
    " collect_set(1) AS s FROM (SELECT DISTINCT h, c0 FROM odd WHERE c0 IS NOT NULL) GROUP BY h",
    "types_view": "SELECT `x.y`, sum(`the ``count```) AS n FROM types_group_text GROUP BY `x.y`",
}

MORE = {
    "pipe": "FROM t |> WHERE g > 1 |> AGGREGATE count(*) AS n GROUP BY k |> ORDER BY n, k |> LIMIT 2",
    "group_by_all": "SELECT k, f, count(*) AS n, sum(x) AS s FROM t GROUP BY ALL",
    "subquery_in_join": "SELECT t.id, u.v FROM t JOIN u ON t.k = u.k AND t.b + u.v > (SELECT min(v) FROM u)",
    "subquery_in_outer": "SELECT t.id, u.v FROM t FULL JOIN u ON t.k = u.k AND t.g + u.v > (SELECT avg(v) FROM u)",
    "exists_case": "SELECT id, CASE WHEN EXISTS (SELECT 1 FROM u WHERE u.k = t.k) THEN 1 ELSE 0 END AS e FROM t",
    "not_in_or": "SELECT id, g FROM t WHERE g NOT IN (SELECT v FROM u) OR k = 'a'",
    "in_pair": "SELECT id FROM t WHERE (k, g) IN (SELECT k, v FROM u)",
    "not_in_pair": "SELECT id FROM t WHERE (k, g) NOT IN (SELECT k, v FROM u WHERE k IS NOT NULL)",
    "distinct_of_join": "SELECT DISTINCT t.k, u.v FROM t LEFT JOIN u ON t.k = u.k",
    "distinct_over_distinct": "SELECT count(DISTINCT n) AS c FROM (SELECT count(DISTINCT g) AS n FROM t GROUP BY k)",
    "union_of_aggregates": "SELECT 'k' AS what, k AS name, count(*) AS n FROM t GROUP BY k UNION ALL"
    " SELECT 'g', CAST(g AS STRING), count(*) FROM t GROUP BY g",
    "aggregate_of_union": "SELECT k, count(*) AS n, sum(z) AS s FROM (SELECT k, x AS z FROM t UNION ALL"
    " SELECT k, y FROM u) GROUP BY k",
    "join_of_unions": "SELECT a.k, b.k AS bk FROM (SELECT k FROM t UNION SELECT k FROM u) a FULL JOIN"
    " (SELECT k FROM p UNION ALL SELECT k FROM u) b ON a.k = b.k",
    "outer_of_aggregate_of_outer": "SELECT p.id, z.n FROM p LEFT JOIN (SELECT u.v, count(t.id) AS n FROM u"
    " LEFT JOIN t ON u.k = t.k GROUP BY u.v) z ON p.v = z.v",
    "window_over_window": "SELECT k, r, count(*) OVER (PARTITION BY r) AS n FROM (SELECT k, rank() OVER"
    " (PARTITION BY g ORDER BY b) AS r FROM t)",
    "limit_then_window": "SELECT id, rank() OVER (ORDER BY b) AS r FROM"
    " (SELECT id, b FROM t ORDER BY b DESC, id LIMIT 4)",
    "max_of_running_sum": "SELECT k, max(s) AS m FROM (SELECT k, sum(b) OVER (PARTITION BY k ORDER BY id, b"
    " ROWS UNBOUNDED PRECEDING) AS s FROM t) GROUP BY k",
    "semi_of_anti": "SELECT id FROM t WHERE k IN (SELECT k FROM u) AND NOT EXISTS"
    " (SELECT 1 FROM p WHERE p.id = t.id)",
    "correlated_limit": "SELECT id, (SELECT max(v) FROM u WHERE u.k = t.k AND u.v > 1) AS m FROM t"
    " WHERE (SELECT count(*) FROM u WHERE u.k = t.k) < 3",
    "rollup_of_join": "SELECT t.k, u.v, sum(t.b) AS s, count(DISTINCT t.g) AS n FROM t JOIN u ON t.k = u.k"
    " GROUP BY ROLLUP (t.k, u.v)",
    "variance_mixed": "SELECT k, stddev(x) AS s, var_pop(y) AS v, count(DISTINCT v) AS n FROM"
    " (SELECT u.k, x, y, u.v FROM t JOIN u ON t.k = u.k WHERE NOT isnan(x) AND NOT isnan(y)) GROUP BY k",
    "except_of_join": "SELECT id FROM t EXCEPT SELECT t.id FROM t JOIN u ON t.k = u.k",
    "cube_of_union": "SELECT k, v, count(*) AS n FROM (SELECT k, v FROM u UNION ALL SELECT k, v FROM p)"
    " GROUP BY CUBE (k, v)",
    "explode_of_collect": "SELECT k, one FROM (SELECT k, collect_set(g) AS gs FROM t GROUP BY k)"
    " LATERAL VIEW explode(gs) z AS one",
    "global_of_empty_group": "SELECT count(*) AS n, max(c) AS m FROM (SELECT k, count(*) AS c FROM t WHERE g > 99"
    " GROUP BY k)",
}

TIME_WINDOWS = {
    "session": "SELECT k, session_window.start AS since, session_window.end AS until, count(*) AS n, sum(b) AS sb,"
    " max(x) AS mx FROM t GROUP BY k, session_window(ts, '2 hours')",
    "session_global": "SELECT session_window.start AS since, count(*) AS n FROM t"
    " GROUP BY session_window(ts, '2 hours')",
    "session_gap_by_row": "SELECT k, session_window AS w, sum(g) AS s FROM t"
    " GROUP BY k, session_window(ts, CASE WHEN f THEN '1 hour' ELSE '3 hours' END)",
    "session_alone": "SELECT k, session_window AS w FROM u JOIN t USING (k)"
    " GROUP BY k, session_window(ts, '2 hours')",
    "session_append": "SELECT k, session_window.end AS until, min(v) AS lo, count(*) AS c FROM e"
    " GROUP BY k, session_window(ts, '90 minutes')",
    "session_distinct": "SELECT g, session_window.start AS since, count(DISTINCT k) AS n FROM t"
    " GROUP BY g, session_window(ts, '2 hours')",
    "session_two_level": "SELECT n, count(*) AS c FROM (SELECT k, count(*) AS n FROM t"
    " GROUP BY k, session_window(ts, '2 hours')) GROUP BY n",
    "tumbling": "SELECT window.start AS since, window.end AS until, count(*) AS n, sum(x) AS sx FROM t"
    " GROUP BY window(ts, '6 hours')",
    "running_day": "SELECT k, date(ts) AS day, date_trunc('hour', ts) AS hour, sum(count(*)) OVER"
    " (PARTITION BY k, date(ts) ORDER BY date_trunc('hour', ts)) AS n FROM t GROUP BY ALL",
    "cumulative": "SELECT k, day, until, count(*) AS n, max(b) AS m FROM (SELECT k, b, date(ts) AS day, explode("
    "sequence(date_trunc('hour', ts) + INTERVAL 1 HOUR, date_trunc('day', ts) + INTERVAL 1 DAY, INTERVAL 1 HOUR))"
    " AS until FROM t WHERE ts IS NOT NULL) GROUP BY k, day, until",
    "landmark": "SELECT k, count(*) AS n, sum(b) AS s, max(x) AS m FROM t WHERE ts >= TIMESTAMP '2024-01-01 12:00'"
    " GROUP BY k",
    "landmark_in_join": "SELECT l.k, l.n, u.v FROM landmark l LEFT JOIN u ON l.k = u.k AND l.n > u.v",
    "rows_of_view": "SELECT k, n, sum(n) OVER (ORDER BY k NULLS LAST ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS two"
    " FROM landmark",
    "rows_in_join": "SELECT w.id, w.n, u.y FROM (SELECT id, k, count(g) OVER (PARTITION BY k ORDER BY id, b"
    " ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) AS n FROM t) w JOIN u ON w.k = u.k AND w.n >= u.v",
    "hopping": "SELECT k, window(ts, '6 hours', '90 minutes') AS w, count(*) AS n, avg(b) AS ab FROM t"
    " GROUP BY k, window(ts, '6 hours', '90 minutes')",
}

_SUMS = "WITH c AS (SELECT k, sum(b) AS s, count(*) AS n FROM t GROUP BY k)"
REPEATED = {
    "cte_twice": f"{_SUMS} SELECT a.k, a.s, b.k AS k2, b.s AS s2 FROM c a JOIN c b ON a.n = b.n",
    "cte_pruned": f"{_SUMS} SELECT a.k, a.s, b.k AS k2 FROM c a JOIN c b ON a.n = b.n",
    "cte_three_times": f"{_SUMS} SELECT a.k, b.k AS k2, z.k AS k3 FROM c a JOIN c b ON a.n = b.n"
    " LEFT JOIN c z ON z.n = b.n",
    "cte_in_union": f"{_SUMS} SELECT k, s, n FROM c UNION ALL SELECT k, n, s FROM c"
    " UNION ALL SELECT DISTINCT k, n, s FROM c",
    "cte_and_subqueries": f"{_SUMS} SELECT k, s, (SELECT max(n) FROM c) AS most FROM c"
    " WHERE n >= (SELECT avg(n) FROM c)"
    " UNION ALL SELECT k, s, (SELECT max(n) FROM c) FROM c WHERE n < (SELECT avg(n) FROM c)",
    "cte_of_cte": f"{_SUMS}, z AS (SELECT n, count(*) AS ks FROM c GROUP BY n),"
    " y AS (SELECT a.n, a.ks FROM z a JOIN z b ON a.ks = b.ks)"
    " SELECT n, ks FROM y UNION ALL SELECT n, ks FROM y UNION ALL SELECT n, ks FROM z",
    "cte_distinct_or_not": "WITH c AS (SELECT k, count(DISTINCT b) AS n FROM t GROUP BY k),"
    " z AS (SELECT k, count(b) AS n FROM t GROUP BY k)"
    " SELECT c.k, c.n, z.n AS m FROM c JOIN z ON c.n = z.n JOIN c e ON e.n = c.n JOIN z y ON y.n = z.n",
    "cte_of_join": "WITH c AS (SELECT t.id, t.k, u.v, u.y FROM t JOIN u ON t.k = u.k)"
    " SELECT k, v FROM c UNION ALL SELECT k, v FROM c UNION ALL SELECT k, id FROM c",
    "cte_ranked_neighbours": "WITH c AS (SELECT id, k, rank() OVER (PARTITION BY k ORDER BY id, g, b, x) AS r"
    " FROM t) SELECT a.id, a.k, b.id AS before FROM c a JOIN c b ON a.k = b.k AND a.r = b.r + 1",
    "cte_top": "WITH c AS (SELECT k, count(*) AS n FROM t WHERE k IS NOT NULL GROUP BY k"
    " ORDER BY n DESC, k LIMIT 2) SELECT a.k, b.k AS k2 FROM c a CROSS JOIN c b",
    "cte_of_stream": "WITH c AS (SELECT k, count(*) AS n, max(v) AS m FROM e GROUP BY k)"
    " SELECT a.k, b.k AS k2, a.m, b.m AS m2 FROM c a JOIN c b ON a.n = b.n",
    "cte_of_nested": "WITH c AS (SELECT k, collect_set(s) AS z, max(m['a']) AS m FROM t GROUP BY k)"
    " SELECT k, sort_array(z) AS z, m FROM c UNION ALL SELECT k, sort_array(z), m FROM c",
    "cte_with_interval": "WITH c AS (SELECT k, max(ts) - min(ts) AS d, count(*) AS n FROM t GROUP BY k)"
    " SELECT k, cast(d AS STRING) AS d FROM c UNION ALL SELECT k, cast(d AS STRING) FROM c",
}

FAMILIES = {
    "stateless": STATELESS,
    "aggregates": AGGREGATES,
    "joins": JOINS,
    "subqueries": SUBQUERIES,
    "windows": WINDOWS,
    "limits": LIMITS,
    "keyed": KEYED,
    "types": TYPES,
    "more": MORE,
    "time windows": TIME_WINDOWS,
    "views": VIEWS_ON_VIEWS,
    "repeated sub-plans": REPEATED,
}
SHAPES: dict[str, str] = {
    name: query for family in FAMILIES.values() for name, query in family.items()
}
