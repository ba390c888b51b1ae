CREATE VIEW by_plan AS SELECT plan, COUNT(*) AS n, AVG(visits) AS mean FROM rand_hie GROUP BY plan
