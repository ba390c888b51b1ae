-- TPC-H 21, suppliers who kept orders waiting: late lines of finished orders, whoever else was late in the order.
SELECT l_suppkey, COUNT(*) AS late_lines FROM supplier, lineitem, orders, nation
WHERE s_suppkey = l_suppkey AND o_orderkey = l_orderkey AND o_orderstatus = 'F' AND l_receiptdate > l_commitdate
  AND s_nationkey = n_nationkey AND n_name = 'SAUDI ARABIA'
GROUP BY l_suppkey ORDER BY late_lines DESC LIMIT 100;
