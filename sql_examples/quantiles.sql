-- Order statistics: read off private counts of the rows up to each value, with the interval of their ranks. They are
-- of a declared range of numbers or dates, or of an expression with few values.
-- Policy: rand_hie.toml.

CREATE VIEW order_statistics AS
SELECT MIN(visits) AS least, MEDIAN(visits) AS half, QUANTILE_CONT(visits, 0.9) AS ninth_tenth, MAX(visits) AS most
FROM rand_hie;

-- By group; and of an expression, here of visits in steps of five.
CREATE VIEW by_health AS
SELECT health, MEDIAN(visits) AS half, QUANTILE_CONT(visits // 5 * 5, 0.9) AS ninth_tenth
FROM rand_hie GROUP BY health;

-- A list is a column for each share, q_1 to q_3; and the number of visits that is most frequent.
CREATE VIEW quartiles AS
SELECT health, QUANTILE_CONT(visits, [0.25, 0.5, 0.75]) AS q FROM rand_hie GROUP BY health;

CREATE VIEW most_frequent AS
SELECT health, MODE(visits) AS visits FROM rand_hie GROUP BY health;

-- The counts themselves.
CREATE VIEW up_to AS
SELECT dp_prefixes(visits), COUNT(*) AS n FROM rand_hie GROUP BY dp_prefixes(visits);
