-- Workload control: a weight says which answer matters more, OPTIONS holds the budget of the whole batch as BigQuery
-- writes it. Policy: students.toml. `--objective max` on the command line makes the largest error least instead.

CREATE VIEW by_year AS
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS(epsilon = 1.0, delta = 1e-9) gradyear, COUNT(*) AS n
FROM students GROUP BY gradyear;

-- Its error counts 16 times as much when the strategy is chosen.
CREATE VIEW everybody AS
SELECT /*+ WEIGHT(4) */ COUNT(*) AS n FROM students;

CREATE VIEW grades AS
SELECT gender, AVG(gpa) AS mean FROM students GROUP BY gender;
