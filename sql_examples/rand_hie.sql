-- Does free health care make people see doctors more, and are they healthier for it? These are the
-- first questions that one would put to the RAND Health Insurance Experiment. All of them are
-- answered together, from one measurement and one budget: each row of the table is one person in
-- one year, so a count is a number of person-years.

-- The shape of the trial ---------------------------------------------------------------------------

-- How many person-years are there?
CREATE VIEW person_years AS
SELECT COUNT(*) AS n FROM rand_hie;

-- How were they spread over the shares of the bill that families paid?
CREATE VIEW by_coinsurance AS
SELECT coinsurance, COUNT(*) AS n FROM rand_hie GROUP BY coinsurance;

-- How did people rate their own health?
CREATE VIEW by_health AS
SELECT health, COUNT(*) AS n FROM rand_hie GROUP BY health;

-- Chance gave out the plans, so health should look alike on each of them.
CREATE VIEW by_coinsurance_and_health AS
SELECT coinsurance, health, COUNT(*) AS n FROM rand_hie GROUP BY coinsurance, health;

-- How many were on a plan that shares each bill, and how many had a deductible of their own?
CREATE VIEW plan_families AS
SELECT
    COUNT_IF(plan LIKE 'coinsurance%') AS sharing_bills,
    COUNT_IF(plan LIKE 'individual%') AS own_deductible
FROM rand_hie;

-- How often was the question on physical limitations answered, and how?
CREATE VIEW by_limitation AS
SELECT limited, COUNT(*) AS n FROM rand_hie GROUP BY limited;

-- How many had no limit on what the family could spend, and how many had one?
CREATE VIEW spending_limits AS
SELECT
    COUNT_IF(spending_limit IS NULL) AS without_limit,
    COUNT(spending_limit) AS with_limit
FROM rand_hie;

-- How many were paid at least 500 dollars a year for taking part?
CREATE VIEW well_paid AS
SELECT COUNT(*) AS n FROM rand_hie WHERE incentive >= 500;

-- How many visits? -----------------------------------------------------------------------------------

-- Nobody went, somebody went a little, somebody went a lot.
CREATE VIEW no_visit AS
SELECT COUNT(*) AS n FROM rand_hie WHERE visits = 0;

CREATE VIEW one_or_two_visits AS
SELECT COUNT(*) AS n FROM rand_hie WHERE visits BETWEEN 1 AND 2;

CREATE VIEW three_or_four_visits AS
SELECT COUNT(*) AS n FROM rand_hie WHERE visits BETWEEN 3 AND 4;

CREATE VIEW five_to_nine_visits AS
SELECT COUNT(*) AS n FROM rand_hie WHERE visits BETWEEN 5 AND 9;

CREATE VIEW ten_to_nineteen_visits AS
SELECT COUNT(*) AS n FROM rand_hie WHERE visits BETWEEN 10 AND 19;

CREATE VIEW twenty_visits_or_more AS
SELECT COUNT(*) AS n FROM rand_hie WHERE visits >= 20;

-- Overlapping ranges: the released numbers agree with the ones above, part by part.
CREATE VIEW up_to_four_visits AS
SELECT COUNT(*) AS n FROM rand_hie WHERE visits <= 4;

CREATE VIEW up_to_nine_visits AS
SELECT COUNT(*) AS n FROM rand_hie WHERE visits < 10;

-- The headline of the trial: visits on each share of the bill (people of a great many count as 30).
CREATE VIEW visits_by_coinsurance AS
SELECT coinsurance, SUM(visits) AS visits, COUNT(*) AS n FROM rand_hie GROUP BY coinsurance;

CREATE VIEW visits_by_health AS
SELECT health, SUM(visits) AS visits, COUNT(*) AS n FROM rand_hie GROUP BY health;

-- All visits, and those of people who said that their health limits them.
CREATE VIEW visits_of_the_limited AS
SELECT SUM(visits) AS visits, SUM(visits) FILTER (WHERE limited = true) AS by_limited FROM rand_hie;

-- How much of all care goes to the people with ten visits or more?
CREATE VIEW visits_of_frequent_users AS
SELECT SUM(visits) AS visits, COUNT(*) AS n FROM rand_hie WHERE visits >= 10;

-- Price and use --------------------------------------------------------------------------------------

-- Who stayed away for the whole year, by what a visit cost them?
CREATE VIEW no_visit_by_coinsurance AS
SELECT coinsurance, COUNT(*) FILTER (WHERE visits = 0) AS never, COUNT(*) AS n
FROM rand_hie GROUP BY coinsurance;

-- Who saw a doctor at least once, by health?
CREATE VIEW any_visit_by_health AS
SELECT health, COUNT(*) AS n FROM rand_hie WHERE visits > 0 GROUP BY health;

-- Free care against paying nearly everything: the difference in the people who never went ...
CREATE VIEW free_against_95_never_went AS
SELECT
    COUNT_IF(coinsurance = 0 AND visits = 0) - COUNT_IF(coinsurance = 95 AND visits = 0) AS difference
FROM rand_hie;

-- ... and in the frequent users.
CREATE VIEW free_against_95_frequent AS
SELECT
    COUNT_IF(coinsurance = 0 AND visits >= 10) - COUNT_IF(coinsurance = 95 AND visits >= 10) AS difference
FROM rand_hie;

-- The same for all visits, free care against paying a quarter. The arms differ in size: divide by the
-- person-years of by_coinsurance before drawing a conclusion.
CREATE VIEW free_against_25_visits AS
SELECT
    SUM(visits) FILTER (WHERE coinsurance = 0) - SUM(visits) FILTER (WHERE coinsurance = 25) AS difference
FROM rand_hie;

-- Visits on the middle shares together.
CREATE VIEW middle_shares AS
SELECT SUM(visits) AS visits, COUNT(*) AS n FROM rand_hie WHERE coinsurance IN (25, 50);

-- Those who paid something for care and still went five times or more.
CREATE VIEW paid_and_went AS
SELECT COUNT(*) AS n FROM rand_hie WHERE coinsurance > 0 AND visits >= 5;

-- Health and need ------------------------------------------------------------------------------------

-- Poor or fair health and not one visit: the people whom a price may keep from needed care.
CREATE VIEW unmet_need AS
SELECT coinsurance, COUNT(*) AS n FROM rand_hie
WHERE health IN ('fair', 'poor') AND visits = 0 GROUP BY coinsurance;

-- The burden of chronic conditions, by health.
CREATE VIEW disease_by_health AS
SELECT health, SUM(disease_index) AS total_index, COUNT(*) AS n FROM rand_hie GROUP BY health;

-- The sick (a high index, or a limitation) against the rest, among people who went five times or more.
CREATE VIEW sick_and_frequent AS
SELECT
    COUNT_IF(disease_index >= 20 OR limited = true) AS sick,
    COUNT_IF(NOT (disease_index >= 20 OR limited = true)) AS not_sick
FROM rand_hie WHERE visits >= 5;

-- The well: excellent or good, no limitation, few conditions.
CREATE VIEW the_well AS
SELECT COUNT(*) AS n FROM rand_hie
WHERE health <> 'poor' AND health <> 'fair' AND limited = false AND disease_index < 20;

-- No answer to the question on limitations, by health: is that a matter of chance?
CREATE VIEW unanswered_by_health AS
SELECT health, COUNT(*) AS n FROM rand_hie WHERE limited IS NULL GROUP BY health;

-- Small questions need no name: these four become q1 to q4.
SELECT COUNT(*) AS limited_without_visit FROM rand_hie WHERE limited = true AND visits = 0;

SELECT COUNT(*) AS answered FROM rand_hie WHERE limited IS NOT NULL;

SELECT COUNT_IF(health = 'poor') - COUNT_IF(health = 'excellent' AND visits >= 10) AS difference FROM rand_hie;

SELECT 2 * COUNT_IF(visits >= 20) + COUNT_IF(visits BETWEEN 10 AND 19) AS weighted FROM rand_hie;
