-- TPC-H 3, shipping priority, by day of order: one order is a customer's secret, a day is not.
SELECT o_orderdate, o_shippriority, SUM(l_extendedprice * (1 - l_discount)) AS revenue
FROM customer, orders, lineitem
WHERE c_mktsegment = 'BUILDING' AND c_custkey = o_custkey AND l_orderkey = o_orderkey
  AND o_orderdate < DATE '1995-03-15' AND l_shipdate > DATE '1995-03-15'
GROUP BY o_orderdate, o_shippriority
ORDER BY revenue DESC, o_orderdate LIMIT 10;
