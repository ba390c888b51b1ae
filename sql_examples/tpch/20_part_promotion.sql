-- TPC-H 20, potential part promotion: what each supplier shipped of the parts; the stock beside it is public.
SELECT l_suppkey, SUM(l_quantity) AS shipped FROM lineitem, part
WHERE l_partkey = p_partkey AND p_name LIKE 'forest%' AND l_shipdate >= DATE '1994-01-01'
  AND l_shipdate < DATE '1994-01-01' + INTERVAL '1' YEAR
GROUP BY l_suppkey;
