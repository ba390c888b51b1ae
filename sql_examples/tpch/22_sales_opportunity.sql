-- TPC-H 22, global sales opportunity: customers in credit who never ordered are those in credit, less those of
-- them who ordered. The average balance is known from the specification (about 5000 among the positive ones); on
-- other data release it first. The country code is the nation's key plus 10.
CREATE VIEW in_credit AS
SELECT c_nationkey + 10 AS cntrycode, COUNT(*) AS numcust, SUM(c_acctbal) AS totacctbal
FROM customer WHERE c_acctbal > 5000.00 AND c_nationkey + 10 IN (13, 31, 23, 29, 30, 18, 17)
GROUP BY c_nationkey + 10;

CREATE VIEW in_credit_with_orders AS
SELECT c_nationkey + 10 AS cntrycode, COUNT(DISTINCT c_custkey) AS numcust
FROM orders JOIN customer ON o_custkey = c_custkey
WHERE c_acctbal > 5000.00 AND c_nationkey + 10 IN (13, 31, 23, 29, 30, 18, 17)
GROUP BY c_nationkey + 10;

CREATE VIEW opportunity AS
SELECT a.cntrycode, a.numcust - b.numcust AS numcust, a.totacctbal
FROM in_credit a JOIN in_credit_with_orders b ON a.cntrycode = b.cntrycode
WHERE a.cntrycode IN (13, 31, 23, 29, 30, 18, 17)
ORDER BY a.cntrycode;
