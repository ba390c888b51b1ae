-- TPC-H 22, global sales opportunity: customers in credit who never ordered. The average balance is known from the
-- specification (about 5000 among the positive ones); on other data release it first. The country code is the nation's
-- key plus 10.
SELECT c_nationkey + 10 AS cntrycode, COUNT(*) AS numcust, SUM(c_acctbal) AS totacctbal
FROM customer
WHERE c_acctbal > 5000.00 AND c_nationkey + 10 IN (13, 31, 23, 29, 30, 18, 17)
    AND NOT EXISTS (SELECT * FROM orders WHERE o_custkey = c_custkey)
GROUP BY c_nationkey + 10
ORDER BY cntrycode;
