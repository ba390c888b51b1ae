-- Keys that are computed: parts of dates, buckets of numbers, words of a CASE; and groups of a public table.
-- Policy: calendar.toml.

-- Parts of a date have finitely many values by themselves; HAVING sees noisy counts.
CREATE VIEW orders_by_month AS
SELECT month(o_orderdate) AS month, COUNT(*) AS orders, AVG(o_totalprice) AS price
FROM orders GROUP BY month HAVING COUNT(*) > 10 ORDER BY month;

-- Truncated dates: one group for each year between the bounds.
CREATE VIEW orders_by_year AS
SELECT date_trunc('year', o_orderdate) AS year, COUNT(*) AS orders FROM orders GROUP BY year ORDER BY year;

-- Half a year before a day.
CREATE VIEW half_a_year AS
SELECT COUNT(*) AS orders, COUNT_IF(isodow(o_orderdate) >= 6) AS on_weekends
FROM orders
WHERE o_orderdate >= DATE '1998-08-03' - INTERVAL 6 MONTH AND o_orderdate < TIMESTAMP '1998-08-03 00:00:00';

-- Priorities that the policy does not list are one group, OTHER: NULL with priority_other.
CREATE VIEW priorities AS
SELECT o_orderpriority AS priority, COUNT(*) AS orders FROM orders GROUP BY priority;

-- Eleven buckets of 1,000; bucket 0 is what lies below, bucket 12 what lies above.
CREATE VIEW balances AS
SELECT width_bucket(c_acctbal, -1000, 10000, 11) AS bucket, COUNT(*) AS customers FROM customer GROUP BY bucket;

-- A number inside a text: NULL where there is none, so that no row can fail.
CREATE VIEW countries AS
SELECT CASE WHEN TRY_CAST(left(c_phone, 2) AS INTEGER) < 20 THEN 'low' ELSE 'high' END AS code, COUNT(*) AS customers
FROM customer GROUP BY code;

-- Keys from a public table: every nation has a row. COUNT(*) would count nations, so a column is counted.
CREATE VIEW customers_by_nation AS
SELECT n_name, COUNT(c_acctbal) AS customers, AVG(c_acctbal) AS balance
FROM nation LEFT JOIN customer ON c_nationkey = n_nationkey
GROUP BY n_name;
