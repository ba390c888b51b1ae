-- What DuckDB does with noisy tables costs nothing and reveals nothing: only the counts and sums below are measured.
-- Policy: rand_hie.toml.

-- A WITH query that keeps rows apart is read as part of the query; so is a derived table, and the policy's own view.
CREATE VIEW sick_and_poor AS
WITH sick AS (SELECT * FROM rand_hie WHERE disease_index >= 20)
SELECT health, COUNT(*) AS n FROM sick GROUP BY health;

CREATE VIEW frequent_by_health AS
SELECT health, COUNT(*) AS n FROM frequent_users GROUP BY health;

-- Shares of a total, running sums and ranks.
CREATE VIEW shares AS
SELECT health, COUNT(*) AS n, ROUND(100 * COUNT(*) / SUM(COUNT(*)) OVER (), 1) AS percent,
       rank() OVER (ORDER BY COUNT(*) DESC) AS place
FROM rand_hie GROUP BY health ORDER BY place;

-- The two largest groups, the groups above a threshold, the one with the most visits.
CREATE VIEW largest_two AS
SELECT health, COUNT(*) AS n FROM rand_hie GROUP BY health ORDER BY n DESC LIMIT 2;

CREATE VIEW large_enough AS
SELECT health, AVG(visits) AS visits FROM rand_hie GROUP BY health HAVING COUNT(*) > 1000;

CREATE VIEW most_visits AS
SELECT health, SUM(visits) AS total FROM rand_hie GROUP BY health QUALIFY row_number() OVER (ORDER BY total DESC) = 1;

-- Results put below each other and beside each other: parts of a statement, or earlier views of the batch.
CREATE VIEW both AS
SELECT 'sick' AS who, SUM(n) AS n FROM sick_and_poor
UNION ALL
SELECT 'frequent', SUM(n) FROM frequent_by_health;

CREATE VIEW sick_for_each_frequent AS
SELECT s.health, s.n / f.n AS ratio
FROM sick_and_poor s JOIN frequent_by_health f ON s.health = f.health
ORDER BY ratio DESC;
