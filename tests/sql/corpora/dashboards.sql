-- Statements as dashboards and analysts write them. A line `-- [name]` begins each; `refused: code` behind it says
-- that it is refused, and the reason follows. tests/sql/test_corpora.py holds every statement to its line.

-- [metabase: count by month]
SELECT date_trunc('month', "main"."orders"."created_at") AS "created_at", COUNT(*) AS "count"
FROM "main"."orders"
GROUP BY date_trunc('month', "main"."orders"."created_at")
ORDER BY date_trunc('month', "main"."orders"."created_at") ASC

-- [metabase: sum by category, joined]
SELECT "products__via__product_id"."category" AS "products__via__product_id__category",
       SUM("main"."orders"."total") AS "sum"
FROM "main"."orders"
LEFT JOIN "main"."products" AS "products__via__product_id"
       ON "main"."orders"."product_id" = "products__via__product_id"."id"
GROUP BY "products__via__product_id"."category"
ORDER BY "sum" DESC, "products__via__product_id"."category" ASC

-- [metabase: distinct customers by week]
SELECT date_trunc('week', "main"."orders"."created_at") AS "created_at",
       COUNT(DISTINCT "main"."orders"."customer_id") AS "count"
FROM "main"."orders"
WHERE "main"."orders"."created_at" >= TIMESTAMP '2025-01-01 00:00:00'
  AND "main"."orders"."created_at" < TIMESTAMP '2025-04-01 00:00:00'
GROUP BY date_trunc('week', "main"."orders"."created_at")
ORDER BY date_trunc('week', "main"."orders"."created_at") ASC

-- [metabase: bins of a number]
SELECT FLOOR(("main"."orders"."total" - 0.0) / 250.0) * 250.0 + 0.0 AS "total", COUNT(*) AS "count"
FROM "main"."orders"
GROUP BY FLOOR(("main"."orders"."total" - 0.0) / 250.0) * 250.0 + 0.0
ORDER BY FLOOR(("main"."orders"."total" - 0.0) / 250.0) * 250.0 + 0.0 ASC

-- [metabase: share that satisfies a condition]
SELECT "main"."orders"."channel" AS "channel",
       SUM(CASE WHEN "main"."orders"."status" = 'returned' THEN 1 ELSE 0.0 END) / COUNT(*) AS "share"
FROM "main"."orders"
GROUP BY "main"."orders"."channel"
ORDER BY "main"."orders"."channel" ASC

-- [metabase: nested question with a filter on the aggregate]
SELECT "source"."created_at" AS "created_at", "source"."sum" AS "sum"
FROM (SELECT date_trunc('month', "main"."orders"."created_at") AS "created_at", SUM("main"."orders"."total") AS "sum"
      FROM "main"."orders"
      GROUP BY date_trunc('month', "main"."orders"."created_at")
      ORDER BY date_trunc('month', "main"."orders"."created_at") ASC) AS "source"
WHERE "source"."sum" > 1000
LIMIT 1048575

-- [metabase: cumulative count]
SELECT date_trunc('month', "main"."customers"."signed_up") AS "signed_up",
       SUM(COUNT(*)) OVER (ORDER BY date_trunc('month', "main"."customers"."signed_up") ASC
                           ROWS UNBOUNDED PRECEDING) AS "count"
FROM "main"."customers"
GROUP BY date_trunc('month', "main"."customers"."signed_up")
ORDER BY date_trunc('month', "main"."customers"."signed_up") ASC

-- [metabase: day of the week and hour]
SELECT CAST(extract(dow FROM "main"."orders"."created_at") AS INTEGER) + 1 AS "weekday",
       CAST(extract(hour FROM "main"."orders"."created_at") AS INTEGER) AS "hour", COUNT(*) AS "count"
FROM "main"."orders"
GROUP BY CAST(extract(dow FROM "main"."orders"."created_at") AS INTEGER) + 1,
         CAST(extract(hour FROM "main"."orders"."created_at") AS INTEGER)
ORDER BY 1 ASC, 2 ASC

-- [metabase: the rows of a table] refused: chosen-rows
-- A preview of rows shows rows of persons.
SELECT "main"."orders"."id" AS "id", "main"."orders"."total" AS "total", "main"."orders"."status" AS "status"
FROM "main"."orders"
LIMIT 2000

-- [superset: time grain of a day]
SELECT DATE_TRUNC('DAY', ts) AS __timestamp, COUNT(*) AS count
FROM main.requests
WHERE ts >= '2025-03-01 00:00:00.000000' AND ts < '2025-03-08 00:00:00.000000'
GROUP BY DATE_TRUNC('DAY', ts)
ORDER BY count DESC
LIMIT 10000

-- [superset: series limited to the largest]
SELECT DATE_TRUNC('DAY', picked) AS __timestamp, payment AS payment, SUM(fare) AS "SUM(fare)"
FROM main.trips
WHERE picked >= CAST('2024-05-01' AS TIMESTAMP) AND picked < CAST('2024-06-01' AS TIMESTAMP)
  AND payment IN ('card', 'cash')
GROUP BY DATE_TRUNC('DAY', picked), payment
ORDER BY "SUM(fare)" DESC
LIMIT 1000

-- [superset: series limited by a joined subquery] refused: rows-with-results
-- Rows are joined with what was measured of other rows: measure the series, then take the largest ones.
SELECT DATE_TRUNC('DAY', picked) AS __timestamp, zone AS zone, COUNT(*) AS count
FROM main.trips
JOIN (SELECT zone AS zone__, COUNT(*) AS mme_inner__ FROM main.trips
      WHERE picked >= TIMESTAMP '2024-05-01 00:00:00' AND picked < TIMESTAMP '2024-05-08 00:00:00'
      GROUP BY zone ORDER BY mme_inner__ DESC LIMIT 5) AS series_limit ON zone = zone__
WHERE picked >= TIMESTAMP '2024-05-01 00:00:00' AND picked < TIMESTAMP '2024-05-08 00:00:00'
GROUP BY DATE_TRUNC('DAY', picked), zone
ORDER BY count DESC
LIMIT 10000

-- [superset: virtual dataset]
SELECT borough AS borough, AVG(minutes) AS "AVG(minutes)", COUNT(*) AS "COUNT(*)"
FROM (SELECT z.borough, date_diff('minute', t.picked, t.dropped) AS minutes, t.fare
      FROM main.trips t JOIN main.zones z ON t.zone = z.id
      WHERE t.dropped > t.picked) AS virtual_table
WHERE minutes < 180
GROUP BY borough
ORDER BY "COUNT(*)" DESC
LIMIT 100

-- [superset: metrics of a table]
SELECT channel AS channel, status AS status, COUNT(*) AS "COUNT(*)", SUM(total) AS "SUM(total)",
       AVG(total) AS "AVG(total)", MAX(total) AS "MAX(total)", COUNT(DISTINCT customer_id) AS customers
FROM main.orders
GROUP BY channel, status
ORDER BY "SUM(total)" DESC
LIMIT 1000

-- [superset: percentage metric]
SELECT service AS service,
       CAST(SUM(CASE WHEN status >= 500 THEN 1 ELSE 0 END) AS DOUBLE) * 100 / COUNT(*) AS "error %"
FROM main.requests
GROUP BY service
ORDER BY "error %" DESC
LIMIT 50000

-- [superset: pivot table with totals]
SELECT country AS country, segment AS segment, COUNT(*) AS count
FROM main.customers
GROUP BY ROLLUP (country, segment)
ORDER BY count DESC

-- [superset: values of a filter] refused: chosen-rows
-- Which values exist is private; the policy lists them.
SELECT DISTINCT country AS country FROM main.customers ORDER BY country ASC LIMIT 1000

-- [superset: box plot]
SELECT payment AS payment, QUANTILE_CONT(fare, 0.25) AS p25, MEDIAN(fare) AS p50, QUANTILE_CONT(fare, 0.75) AS p75,
       MIN(fare) AS lowest, MAX(fare) AS highest
FROM main.trips
GROUP BY payment

-- [tableau: one sum]
SELECT SUM("orders"."total") AS "sum:total:ok"
FROM "main"."orders" "orders"
HAVING (COUNT(1) > 0)

-- [tableau: sums by year and segment]
SELECT "customers"."segment" AS "segment", SUM("orders"."total") AS "sum:total:ok",
       CAST(EXTRACT(YEAR FROM "orders"."created_at") AS BIGINT) AS "yr:created_at:ok"
FROM "main"."orders" "orders"
INNER JOIN "main"."customers" "customers" ON ("orders"."customer_id" = "customers"."id")
GROUP BY 1, 3

-- [tableau: filter by a set]
SELECT "orders"."status" AS "status", COUNT(DISTINCT "orders"."customer_id") AS "ctd:customer_id:ok"
FROM "main"."orders" "orders"
WHERE (("orders"."channel" IN ('phone', 'store')) AND ("orders"."total" >= 10.0) AND ("orders"."total" <= 990.0))
GROUP BY 1

-- [tableau: calculated field with labels]
SELECT (CASE WHEN ("orders"."total" < 100) THEN 'small' WHEN ("orders"."total" < 1000) THEN 'medium' ELSE 'large' END)
           AS "Calculation_1", SUM("orders"."quantity") AS "sum:quantity:ok"
FROM "main"."orders" "orders"
GROUP BY 1

-- [tableau: month as a date]
SELECT DATE_TRUNC('MONTH', CAST("orders"."created_at" AS DATE)) AS "tmn:created_at:ok",
       AVG("orders"."discount") AS "avg:discount:ok"
FROM "main"."orders" "orders"
GROUP BY 1

-- [tableau: count of records with a null test]
SELECT "trips"."payment" AS "payment", COUNT("trips"."passengers") AS "cnt:passengers:ok",
       SUM((CASE WHEN ("trips"."passengers" IS NULL) THEN 1 ELSE 0 END)) AS "sum:missing:ok"
FROM "main"."trips" "trips"
GROUP BY 1
HAVING (COUNT(1) > 0)

-- [tableau: ratio of two sums]
SELECT "zones"."borough" AS "borough",
       (CASE WHEN SUM("trips"."fare") = 0 THEN NULL ELSE SUM("trips"."tip") / SUM("trips"."fare") END)
           AS "usr:ratio:ok"
FROM "main"."trips" "trips"
LEFT JOIN "main"."zones" "zones" ON ("trips"."zone" = "zones"."id")
GROUP BY 1

-- [tableau: level of detail for each customer]
SELECT "t0"."n_orders" AS "n_orders", COUNT(DISTINCT "t0"."customer_id") AS "ctd:customer_id:ok"
FROM (SELECT "orders"."customer_id" AS "customer_id", COUNT(1) AS "n_orders"
      FROM "main"."orders" "orders" GROUP BY 1) "t0"
GROUP BY 1

-- [tableau: first order of each customer as a cohort]
SELECT DATE_TRUNC('QUARTER', "t0"."first_order") AS "qr:first_order:ok", COUNT(1) AS "cnt:customers:ok"
FROM (SELECT "orders"."customer_id" AS "customer_id", MIN("orders"."created_at") AS "first_order"
      FROM "main"."orders" "orders" GROUP BY "orders"."customer_id") "t0"
GROUP BY 1
ORDER BY 1

-- [grafana: requests a minute]
SELECT time_bucket(INTERVAL '1 minute', ts) AS "time", COUNT(*) AS value
FROM requests
WHERE ts BETWEEN '2025-03-14 10:00:00' AND '2025-03-14 11:00:00'
GROUP BY 1
ORDER BY 1

-- [grafana: floor of the epoch]
SELECT floor(epoch(ts) / 300) * 300 AS "time", service AS metric, AVG(latency_ms) AS "latency"
FROM requests
WHERE ts >= '2025-03-14 00:00:00' AND ts < '2025-03-14 06:00:00'
GROUP BY 1, 2
ORDER BY 1, 2

-- [grafana: percentiles of the latency]
SELECT date_trunc('hour', ts) AS "time",
       quantile_cont(latency_ms, 0.5) AS p50, quantile_cont(latency_ms, 0.95) AS p95
FROM requests
WHERE ts >= '2025-03-14 00:00:00' AND ts < '2025-03-15 00:00:00' AND service = 'api'
GROUP BY 1
ORDER BY 1

-- [grafana: error rate by status class]
SELECT date_trunc('hour', ts) AS "time", (status // 100) || 'xx' AS metric, COUNT(*) AS value
FROM requests
WHERE ts >= '2025-03-14 00:00:00' AND ts < '2025-03-15 00:00:00'
GROUP BY 1, 2
ORDER BY 1

-- [grafana: filters beside each other]
SELECT date_trunc('day', ts) AS "time", COUNT(*) FILTER (WHERE status < 400) AS ok,
       COUNT(*) FILTER (WHERE status BETWEEN 400 AND 499) AS client, COUNT(*) FILTER (WHERE status >= 500) AS server
FROM requests
GROUP BY 1
ORDER BY 1

-- [grafana: rate over the previous bucket]
SELECT "time", value, value - lag(value) OVER (ORDER BY "time") AS change
FROM (SELECT date_trunc('hour', ts) AS "time", SUM(bytes) AS value FROM requests
      WHERE ts >= '2025-03-14' AND ts < '2025-03-15' GROUP BY 1)
ORDER BY 1

-- [grafana: slow paths] refused: unknown-groups
-- Paths are not declared: a row of the result would show that somebody asked for one.
SELECT path, COUNT(*) AS n FROM requests WHERE latency_ms > 2000 GROUP BY path ORDER BY n DESC LIMIT 20

-- [grafana: since a moment ago] refused: changing-function
-- now() changes the question with the clock; the dashboard's $__timeFrom() is a constant.
SELECT COUNT(*) AS value FROM requests WHERE ts > now() - INTERVAL '5 minutes'

-- [notebook: a funnel by CTE]
WITH buyers AS (SELECT customer_id, COUNT(*) AS n FROM orders WHERE status <> 'cancelled' GROUP BY customer_id),
sizes AS (SELECT CASE WHEN n = 1 THEN 'once' WHEN n <= 3 THEN 'two or three' ELSE 'more' END AS how_often FROM buyers)
SELECT how_often, COUNT(*) AS customers FROM sizes GROUP BY how_often ORDER BY customers DESC

-- [notebook: percent of total]
SELECT country, COUNT(*) AS n, ROUND(100.0 * COUNT(*) / SUM(COUNT(*)) OVER (), 1) AS pct
FROM customers GROUP BY country ORDER BY n DESC

-- [notebook: moving average]
WITH daily AS (SELECT CAST(picked AS DATE) AS day, COUNT(*) AS n FROM trips GROUP BY 1)
SELECT day, n, AVG(n) OVER (ORDER BY day ROWS BETWEEN 6 PRECEDING AND CURRENT ROW) AS week FROM daily ORDER BY day

-- [notebook: the top three of each group]
SELECT channel, category, revenue FROM (
    SELECT channel, category, SUM(total) AS revenue,
           ROW_NUMBER() OVER (PARTITION BY channel ORDER BY SUM(total) DESC) AS place
    FROM orders JOIN products p ON product_id = p.id GROUP BY channel, category)
WHERE place <= 3 ORDER BY channel, place

-- [notebook: month over month]
WITH m AS (SELECT date_trunc('month', created_at) AS month, SUM(total) AS revenue FROM orders GROUP BY 1)
SELECT month, revenue, revenue / LAG(revenue) OVER (ORDER BY month) - 1 AS growth FROM m ORDER BY month

-- [notebook: year over year by columns]
SELECT month(created_at) AS month, SUM(CASE WHEN year(created_at) = 2024 THEN total END) AS y2024,
       SUM(CASE WHEN year(created_at) = 2025 THEN total END) AS y2025
FROM orders GROUP BY month ORDER BY month

-- [notebook: long trips]
SELECT COUNT(*) AS n, AVG(fare) AS fare FROM trips WHERE dropped - picked > INTERVAL '30 minutes'

-- [notebook: speed] refused: no-bounds
-- The CASE keeps out what would be negative, but bounds are those of the expression: LEAST(GREATEST(..., 0), 80).
SELECT AVG(CASE WHEN dropped > picked THEN LEAST(dist / (epoch(dropped - picked) / 3600), 80) END) AS mph FROM trips

-- [notebook: share of the tip in each row]
SELECT payment, AVG(CASE WHEN fare > 0 THEN LEAST(tip / fare, 1) END) AS share FROM trips GROUP BY payment

-- [notebook: fares beside distances]
SELECT COUNT(*) FILTER (WHERE fare > 3 * dist) AS dear, COUNT(*) FILTER (WHERE fare <= dist) AS cheap FROM trips

-- [notebook: histogram by tens]
SELECT floor(fare / 10) * 10 AS bucket, COUNT(*) AS n FROM trips GROUP BY bucket ORDER BY bucket

-- [notebook: correlation]
SELECT corr(dist, fare) AS r, regr_slope(fare, dist) AS slope FROM trips

-- [notebook: customers who bought online]
SELECT COUNT(DISTINCT CASE WHEN channel = 'web' THEN customer_id END) AS online,
       COUNT(DISTINCT customer_id) AS customers FROM orders

-- [notebook: rough count of customers]
SELECT date_trunc('month', created_at) AS month, APPROX_COUNT_DISTINCT(customer_id) AS customers
FROM orders GROUP BY ALL ORDER BY ALL

-- [notebook: from first]
FROM trips SELECT zone, COUNT(*) AS n, AVG(tip) AS tip GROUP BY ALL ORDER BY n DESC LIMIT 10

-- [notebook: quarters as labels]
SELECT year(created_at) || '-Q' || quarter(created_at) AS quarter, SUM(total) AS revenue
FROM orders GROUP BY 1 ORDER BY 1

-- [notebook: age groups]
SELECT (date_diff('year', born, DATE '2025-12-31') // 10) * 10 AS decade, segment, COUNT(*) AS n
FROM customers WHERE born IS NOT NULL GROUP BY 1, 2 ORDER BY 1, 2

-- [notebook: strings tidied]
SELECT CASE WHEN lower(trim(email)) LIKE '%@gmail.com' THEN 'gmail' WHEN email IS NULL THEN 'none' ELSE 'other' END
           AS host, COUNT(*) AS n
FROM customers GROUP BY host ORDER BY n DESC

-- [notebook: customers without an order]
SELECT COUNT(*) AS without FROM customers c WHERE NOT EXISTS (SELECT 1 FROM orders o WHERE o.customer_id = c.id)

-- [notebook: average order of returning customers]
SELECT segment, AVG(spent) AS spent
FROM customers c JOIN (SELECT customer_id, LEAST(SUM(total), 10000) AS spent FROM orders
                       GROUP BY customer_id HAVING COUNT(*) > 1) o ON o.customer_id = c.id
GROUP BY segment

-- [notebook: orders above the average] refused: subquery
-- What a row is held against must not depend on other rows: release the average first.
SELECT COUNT(*) FROM orders WHERE total > (SELECT AVG(total) FROM orders)

-- [notebook: retention by a self-join] refused: self-join
-- One customer's rows would multiply.
SELECT date_trunc('month', a.created_at) AS month, COUNT(DISTINCT a.customer_id) AS returned
FROM orders a JOIN orders b ON a.customer_id = b.customer_id AND b.created_at < a.created_at
GROUP BY 1

-- [notebook: customers who returned, by joining the first order]
SELECT date_trunc('month', o.created_at) AS month, COUNT(DISTINCT o.customer_id) AS returned
FROM orders o
JOIN (SELECT customer_id, MIN(created_at) AS first_order FROM orders GROUP BY customer_id) f
  ON f.customer_id = o.customer_id
WHERE o.created_at > f.first_order
GROUP BY 1 ORDER BY 1

-- [notebook: days between orders]
SELECT AVG(gap) FROM (SELECT date_diff('day', LAG(created_at) OVER (PARTITION BY customer_id ORDER BY created_at),
                                       created_at) AS gap FROM orders)

-- [notebook: recency, in days before a date]
SELECT LEAST(date_diff('day', last_order, TIMESTAMP '2025-12-31 00:00:00') // 30, 12) AS months, COUNT(*) AS customers
FROM (SELECT customer_id, MAX(created_at) AS last_order FROM orders GROUP BY customer_id)
GROUP BY months ORDER BY months

-- [notebook: union of two measures]
SELECT 'orders' AS what, COUNT(*) AS n FROM orders UNION ALL SELECT 'customers', COUNT(*) FROM customers

-- [notebook: countries where more than half are corporate]
SELECT country, COUNT(*) FILTER (WHERE segment = 'Corporate') / COUNT(*) AS share
FROM customers GROUP BY country HAVING COUNT(*) > 100 AND share > 0.5 ORDER BY share DESC

-- [notebook: weekends]
SELECT dayname(picked) AS day, isodow(picked) IN (6, 7) AS weekend, COUNT(*) AS n, AVG(fare) AS fare
FROM trips GROUP BY 1, 2 ORDER BY n DESC

-- [notebook: pivot of payments by borough]
PIVOT (SELECT borough, payment, fare FROM trips JOIN zones z ON zone = z.id)
ON payment IN ('card', 'cash', 'none') USING COUNT(*) GROUP BY borough

-- [notebook: distinct zones served]
SELECT COUNT(DISTINCT zone) AS zones FROM trips WHERE picked >= TIMESTAMP '2024-06-01 00:00:00'

-- [metabase: new and total customers by quarter]
SELECT CAST(date_trunc('quarter', "main"."customers"."signed_up") AS DATE) AS "signed_up", COUNT(*) AS "count",
       COUNT(DISTINCT "main"."customers"."country") AS "countries"
FROM "main"."customers"
GROUP BY CAST(date_trunc('quarter', "main"."customers"."signed_up") AS DATE)
ORDER BY CAST(date_trunc('quarter', "main"."customers"."signed_up") AS DATE) ASC

-- [metabase: filter that is empty or a date]
SELECT "main"."orders"."status" AS "status", AVG("main"."orders"."total") AS "avg"
FROM "main"."orders"
WHERE (CAST("main"."orders"."created_at" AS DATE) BETWEEN DATE '2025-01-01' AND DATE '2025-01-31')
  AND ("main"."orders"."note" IS NULL OR "main"."orders"."note" = '')
GROUP BY "main"."orders"."status"
ORDER BY "main"."orders"."status" ASC

-- [metabase: custom column and expression]
SELECT "source"."net_band" AS "net_band", COUNT(*) AS "count", SUM("source"."net") AS "sum"
FROM (SELECT "main"."orders"."total" * (1 - "main"."orders"."discount") AS "net",
             CASE WHEN "main"."orders"."discount" > 0 THEN 'reduced' ELSE 'full' END AS "net_band"
      FROM "main"."orders") AS "source"
GROUP BY "source"."net_band"

-- [metabase: two breakouts and a temporal filter]
SELECT "products__via__product_id"."category" AS "category",
       CAST(extract(month FROM "main"."orders"."created_at") AS INTEGER) AS "month", SUM("main"."orders"."quantity") AS "sum"
FROM "main"."orders"
LEFT JOIN "main"."products" AS "products__via__product_id"
       ON "main"."orders"."product_id" = "products__via__product_id"."id"
WHERE "main"."orders"."created_at" >= date_trunc('year', TIMESTAMP '2025-06-15 00:00:00')
  AND "main"."orders"."created_at" < date_trunc('year', TIMESTAMP '2025-06-15 00:00:00') + INTERVAL '1 year'
GROUP BY 1, 2 ORDER BY 1, 2

-- [metabase: the last thirty days] refused: changing-function
-- The question changes with the clock: the filter's dates are constants.
SELECT COUNT(*) AS "count" FROM "main"."orders"
WHERE "main"."orders"."created_at" >= CAST(current_date AS TIMESTAMP) - INTERVAL '30 days'

-- [metabase: standard deviation and percentile]
SELECT "main"."trips"."payment" AS "payment", STDDEV_POP("main"."trips"."fare") AS "stddev",
       PERCENTILE_CONT(0.9) WITHIN GROUP (ORDER BY "main"."trips"."passengers") AS "percentile"
FROM "main"."trips" GROUP BY "main"."trips"."payment"

-- [metabase: qualified with the catalog]
SELECT "shop"."main"."orders"."channel" AS "channel", COUNT(*) AS "count"
FROM "shop"."main"."orders" GROUP BY "shop"."main"."orders"."channel"

-- [superset: constant group]
SELECT 'all' AS series, DATE_TRUNC('MONTH', created_at) AS __timestamp, COUNT(*) AS count
FROM main.orders GROUP BY 'all', DATE_TRUNC('MONTH', created_at) LIMIT 10000

-- [superset: constant group by its alias]
SELECT 'all' AS series, DATE_TRUNC('MONTH', created_at) AS __timestamp, COUNT(*) AS count
FROM main.orders GROUP BY series, __timestamp LIMIT 10000

-- [superset: adhoc filters]
SELECT country AS country, COUNT(*) AS count
FROM main.customers
WHERE ((segment IN ('Consumer', 'Corporate')) AND (email LIKE '%.com') AND (born IS NOT NULL))
GROUP BY country ORDER BY count DESC LIMIT 100

-- [superset: contribution of each status]
SELECT status AS status, COUNT(*) AS count, COUNT(*) * 1.0 / SUM(COUNT(*)) OVER () AS contribution
FROM main.orders GROUP BY status ORDER BY count DESC

-- [superset: rolling sum]
SELECT DATE_TRUNC('WEEK', picked) AS __timestamp, SUM(fare) AS fares,
       SUM(SUM(fare)) OVER (ORDER BY DATE_TRUNC('WEEK', picked) ROWS BETWEEN 3 PRECEDING AND CURRENT ROW) AS rolling
FROM main.trips GROUP BY DATE_TRUNC('WEEK', picked) ORDER BY __timestamp

-- [superset: time offset, joined]
SELECT a.m AS m, a.n AS n, b.n AS "1 year ago"
FROM (SELECT month(created_at) AS m, COUNT(*) AS n FROM main.orders WHERE year(created_at) = 2025 GROUP BY 1) a
LEFT JOIN (SELECT month(created_at) AS m, COUNT(*) AS n FROM main.orders WHERE year(created_at) = 2024 GROUP BY 1) b
  ON a.m = b.m ORDER BY m

-- [superset: five-minute grain]
SELECT time_bucket(INTERVAL '5 minutes', ts) AS __timestamp, MAX(latency_ms) AS "MAX(latency_ms)"
FROM main.requests WHERE ts >= '2025-03-02 08:00:00' AND ts < '2025-03-02 09:00:00'
GROUP BY 1 ORDER BY 1

-- [superset: samples pane] refused: chosen-rows
-- A preview of rows shows rows of persons.
SELECT * FROM main.trips LIMIT 1000 OFFSET 0

-- [superset: big number with its trend]
SELECT DATE_TRUNC('MONTH', ts) AS __timestamp, COUNT(DISTINCT user_id) AS users
FROM main.requests GROUP BY DATE_TRUNC('MONTH', ts) ORDER BY __timestamp ASC LIMIT 50000

-- [superset: histogram by width_bucket of the database] refused: rows-with-results
-- The bounds of the bins would be those of the data.
SELECT WIDTH_BUCKET(fare, lo, hi, 10) AS bin, COUNT(*) AS n
FROM main.trips, (SELECT MIN(fare) AS lo, MAX(fare) AS hi FROM main.trips) AS ends GROUP BY bin

-- [tableau: average by two dimensions and a boolean]
SELECT "orders"."channel" AS "channel", ("orders"."discount" > 0) AS "Calculation_2",
       AVG(CAST("orders"."total" AS DOUBLE)) AS "avg:total:ok"
FROM "main"."orders" "orders" GROUP BY 1, 2

-- [tableau: date part by name]
SELECT EXTRACT(QUARTER FROM "orders"."created_at") AS "qr:created_at:ok", "orders"."status" AS "status",
       COUNT(1) AS "cnt:orders:ok"
FROM "main"."orders" "orders"
WHERE (CAST(EXTRACT(YEAR FROM "orders"."created_at") AS BIGINT) = 2025)
GROUP BY 1, 2

-- [tableau: fixed level of detail joined back]
SELECT "t0"."segment" AS "segment", AVG("t1"."measure") AS "avg:spend:ok"
FROM "main"."customers" "t0"
INNER JOIN (SELECT "orders"."customer_id" AS "customer_id", SUM("orders"."total") AS "measure"
            FROM "main"."orders" "orders" GROUP BY 1) "t1" ON ("t0"."id" = "t1"."customer_id")
GROUP BY 1

-- [tableau: customers by the status of their last order]
SELECT "t0"."status" AS "status", COUNT(1) AS "cnt:customers:ok"
FROM (SELECT "orders"."customer_id" AS "customer_id", ARG_MAX("orders"."status", "orders"."created_at") AS "status"
      FROM "main"."orders" "orders" GROUP BY 1) "t0"
GROUP BY 1

-- [tableau: top ten by a joined query] refused: rows-with-results
-- Rows are joined with what was measured of other rows: measure the groups, then take the largest ones.
SELECT "t"."zone" AS "zone", SUM("t"."fare") AS "sum:fare:ok"
FROM "main"."trips" "t"
INNER JOIN (SELECT "trips"."zone" AS "zone", COUNT(1) AS "x" FROM "main"."trips" "trips"
            GROUP BY 1 ORDER BY 2 DESC LIMIT 10) "top" ON ("t"."zone" = "top"."zone")
GROUP BY 1

-- [tableau: values of a filter] refused: unknown-groups
-- Which texts exist is private; the policy lists those of other columns.
SELECT "orders"."note" AS "note" FROM "main"."orders" "orders" GROUP BY 1 ORDER BY 1 ASC

-- [grafana: table of the busiest services]
SELECT service, COUNT(*) AS requests, AVG(latency_ms) AS mean, SUM(bytes) / 1000000.0 AS megabytes
FROM requests WHERE ts BETWEEN '2025-03-10 00:00:00' AND '2025-03-10 23:59:59'
GROUP BY service ORDER BY requests DESC

-- [grafana: requests slower than a threshold]
SELECT date_trunc('hour', ts) AS "time", COUNT_IF(latency_ms > 500) AS slow, COUNT_IF(latency_ms > 500) / COUNT(*) AS share
FROM requests WHERE ts >= '2025-03-14 00:00:00' AND ts < '2025-03-15 00:00:00' GROUP BY 1 ORDER BY 1

-- [grafana: heat map of latency]
SELECT date_trunc('hour', ts) AS "time", LEAST(latency_ms // 100, 20) * 100 AS bucket, COUNT(*) AS n
FROM requests WHERE ts >= '2025-03-14 00:00:00' AND ts < '2025-03-15 00:00:00' GROUP BY 1, 2 ORDER BY 1, 2

-- [grafana: active users a day]
SELECT CAST(ts AS DATE) AS "time", COUNT(DISTINCT user_id) AS users, COUNT(*) / COUNT(DISTINCT user_id) AS each
FROM requests GROUP BY 1 ORDER BY 1

-- [notebook: two totals and their ratio]
SELECT (SELECT COUNT(*) FROM orders) / (SELECT COUNT(*) FROM customers) AS orders_each

-- [notebook: customers by the number of channels]
SELECT channels, COUNT(*) AS customers
FROM (SELECT customer_id, COUNT(DISTINCT channel) AS channels FROM orders GROUP BY customer_id)
GROUP BY channels ORDER BY channels

-- [notebook: first channel of each customer]
SELECT first_channel, COUNT(*) AS customers
FROM (SELECT customer_id, FIRST(channel ORDER BY created_at) AS first_channel FROM orders GROUP BY customer_id)
GROUP BY first_channel

-- [notebook: customers of one month who came back the next]
SELECT COUNT(*) AS stayed
FROM (SELECT DISTINCT customer_id FROM orders WHERE created_at >= '2025-01-01' AND created_at < '2025-02-01')
WHERE customer_id IN (SELECT customer_id FROM orders WHERE created_at >= '2025-02-01' AND created_at < '2025-03-01')

-- [notebook: cube of a shop]
SELECT channel, status, COUNT(*) AS n, SUM(total) AS revenue FROM orders GROUP BY CUBE (channel, status)

-- [notebook: running share of revenue]
SELECT month, SUM(revenue) OVER (ORDER BY month) / SUM(revenue) OVER () AS so_far
FROM (SELECT date_trunc('month', created_at) AS month, SUM(total) AS revenue FROM orders
      WHERE year(created_at) = 2025 GROUP BY 1) ORDER BY month

-- [notebook: speed of trips in bands]
SELECT CASE WHEN dist / NULLIF(date_diff('minute', picked, dropped), 0) > 1 THEN 'fast' ELSE 'slow' END AS pace, COUNT(*) AS n
FROM trips GROUP BY pace

-- [notebook: revenue without discounts]
SELECT year(created_at) AS year, SUM(total + 5) AS with_shipping, SUM(CASE WHEN discount = 0 THEN total ELSE 0 END) AS full
FROM orders GROUP BY ALL ORDER BY ALL
