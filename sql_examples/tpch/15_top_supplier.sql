-- TPC-H 15, top supplier, by key. The supplier's name and address are public: join them to the released view.
WITH revenue (supplier_no, total_revenue) AS (
    SELECT l_suppkey, SUM(l_extendedprice * (1 - l_discount)) FROM lineitem
    WHERE l_shipdate >= DATE '1996-01-01' AND l_shipdate < DATE '1996-01-01' + INTERVAL '3' MONTH
    GROUP BY l_suppkey)
SELECT supplier_no, total_revenue FROM revenue
WHERE total_revenue = (SELECT MAX(total_revenue) FROM revenue) ORDER BY supplier_no;
