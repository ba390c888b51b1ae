-- TPC-H 4, order priority checking: how many customers had a late line in the quarter, and how many late lines,
-- instead of how many orders. Only the privacy unit is counted DISTINCT.
SELECT o_orderpriority, COUNT(DISTINCT o_custkey) AS customers, COUNT(*) AS late_lines
FROM orders JOIN lineitem ON l_orderkey = o_orderkey
WHERE o_orderdate >= DATE '1993-07-01' AND o_orderdate < DATE '1993-07-01' + INTERVAL '3' MONTH
  AND l_commitdate < l_receiptdate
GROUP BY o_orderpriority ORDER BY o_orderpriority;
