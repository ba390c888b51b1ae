-- TPC-H 13, distribution of customers, its two ends: those without an order, and those with one.
CREATE VIEW customers AS SELECT COUNT(*) AS n FROM customer;
CREATE VIEW buyers AS SELECT COUNT(DISTINCT o_custkey) AS n FROM orders WHERE o_comment NOT LIKE '%special%requests%';
CREATE VIEW without_order AS SELECT customers.n - buyers.n AS n FROM customers, buyers;
