-- Units of many rows, and joins: all orders of a customer and all lines of those are protected together, so at most
-- 32 orders and 128 lines of one customer count. Joins go towards the customer, or to public tables.
-- Policy: tpch.toml.

-- How many customers ordered in a year (not how many orders), and how many orders.
CREATE VIEW customers_by_year AS
SELECT year(o_orderdate) AS year, COUNT(DISTINCT o_custkey) AS customers, COUNT(*) AS orders
FROM orders GROUP BY year(o_orderdate);

-- An order with its customer, and the customer's nation from a public table.
CREATE VIEW orders_by_segment AS
SELECT c_mktsegment, COUNT(*) AS orders
FROM orders JOIN customer ON o_custkey = c_custkey
GROUP BY c_mktsegment;

CREATE VIEW orders_by_nation AS
SELECT n_name, COUNT(*) AS orders
FROM orders JOIN customer ON o_custkey = c_custkey JOIN nation ON c_nationkey = n_nationkey
GROUP BY n_name ORDER BY orders DESC LIMIT 5;

-- A line finds its customer through its order.
CREATE VIEW quantity_by_priority AS
SELECT o_orderpriority, AVG(l_quantity) AS quantity
FROM lineitem JOIN orders ON l_orderkey = o_orderkey
GROUP BY o_orderpriority;

-- Several private tables in one batch share its budget: what one customer does to each of them adds up.
CREATE VIEW customers_of_segments AS
SELECT c_mktsegment, COUNT(*) AS customers FROM customer GROUP BY c_mktsegment;
