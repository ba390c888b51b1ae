-- Groups: cubes of several columns, keys that are expressions, and all ranges of one column. Whatever is a part of
-- something else adds up to it, since one measurement answers all.
-- Policy: rand_hie.toml.

-- Totals by health, by limitation, and over all. GROUPING tells a total from people who did not answer.
CREATE VIEW rolled_up AS
SELECT health, limited, GROUPING(health, limited) AS level, COUNT(*) AS n
FROM rand_hie GROUP BY ROLLUP (health, limited) ORDER BY level, health, limited;

CREATE VIEW cube AS
SELECT health, limited, COUNT(*) AS n, SUM(visits) AS visits FROM rand_hie GROUP BY CUBE (health, limited);

CREATE VIEW chosen_sets AS
SELECT health, limited, COUNT(*) AS n FROM rand_hie GROUP BY GROUPING SETS ((health), (limited), ());

-- Every column by itself and every pair of them.
CREATE VIEW one_and_two_way AS
SELECT health, limited, coinsurance, COUNT(*) AS n FROM rand_hie GROUP BY dp_marginals(2, health, limited, coinsurance);

-- Keys that are expressions need no declaration of their own.
CREATE VIEW by_fives AS
SELECT visits // 5 * 5 AS from_visits, COUNT(*) AS n FROM rand_hie GROUP BY visits // 5 * 5;

CREATE VIEW by_use AS
SELECT CASE WHEN visits = 0 THEN 'none' WHEN visits < 10 THEN 'some' ELSE 'much' END AS use, COUNT(*) AS n
FROM rand_hie GROUP BY use;

-- All ranges from one number of visits to another, and all that begin at none.
CREATE VIEW ranges AS
SELECT dp_ranges(visits), COUNT(*) AS n FROM rand_hie GROUP BY dp_ranges(visits);

CREATE VIEW prefixes AS
SELECT dp_prefixes(visits), COUNT(*) AS n FROM rand_hie GROUP BY dp_prefixes(visits);
