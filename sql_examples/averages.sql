-- Averages, ratios and variances: worked out from counts and sums that are planned together, each with an
-- interval that stays within what the policy declares.
-- Policy: rand_hie.toml.

-- The headline of the trial as a mean: visits a year, by the share of the bill that a family paid.
CREATE VIEW mean_visits AS
SELECT coinsurance, AVG(visits) AS visits, COUNT(*) AS person_years FROM rand_hie GROUP BY coinsurance;

-- How spread out are they?
CREATE VIEW spread AS
SELECT AVG(visits) AS mean, VAR_SAMP(visits) AS variance, STDDEV_POP(visits) AS deviation FROM rand_hie;

-- The share of person-years without a visit: a part over the whole lies between 0 and 1.
CREATE VIEW share_without AS
SELECT coinsurance, COUNT_IF(visits = 0) / COUNT(*) AS share FROM rand_hie GROUP BY coinsurance;

-- Free care against paying nearly everything, in visits a year, and how many times as many.
CREATE VIEW free_against_95 AS
SELECT AVG(visits) FILTER (WHERE coinsurance = 0) - AVG(visits) FILTER (WHERE coinsurance = 95) AS more,
       AVG(visits) FILTER (WHERE coinsurance = 0) / AVG(visits) FILTER (WHERE coinsurance = 95) AS times
FROM rand_hie;

-- Sums of an expression have bounds that follow from the columns' own: here at most 30 x 100.
CREATE VIEW out_of_pocket AS
SELECT SUM(visits * coinsurance) / SUM(visits) AS percent_paid_a_visit FROM rand_hie;
