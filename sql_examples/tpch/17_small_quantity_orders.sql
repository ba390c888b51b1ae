-- TPC-H 17, small-quantity orders: against the average quantity of the parts chosen, instead of each part's own.
-- What is measured is one table by quantity; the average and the comparison cost nothing.
WITH by_quantity AS (
    SELECT l_quantity, COUNT(*) AS n, SUM(l_extendedprice) AS price FROM lineitem, part
    WHERE p_partkey = l_partkey AND p_brand = 'Brand#55' AND p_container = 'JUMBO CAN' GROUP BY l_quantity)
SELECT SUM(price) / 7.0 AS avg_yearly FROM by_quantity
WHERE l_quantity < (SELECT 0.2 * SUM(l_quantity * n) / SUM(n) FROM by_quantity);
