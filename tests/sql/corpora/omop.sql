-- Questions of cohorts over OMOP's common data model. A line `-- [name]` begins each; `refused: code` behind it says
-- that it is refused, and the reason follows. tests/sql/test_corpora.py holds every statement to its line.

-- [persons]
SELECT COUNT(*) AS persons FROM person

-- [persons by sex]
SELECT gender_concept_id, COUNT(*) AS persons FROM person GROUP BY gender_concept_id

-- [persons by sex, with the name of the concept]
SELECT c.concept_name AS sex, COUNT(*) AS persons
FROM person p JOIN concept c ON p.gender_concept_id = c.concept_id
GROUP BY c.concept_name

-- [persons by decade of birth and sex]
SELECT year_of_birth // 10 * 10 AS decade, gender_concept_id, COUNT(*) AS persons
FROM person GROUP BY decade, gender_concept_id ORDER BY decade

-- [median year of birth]
SELECT MEDIAN(year_of_birth) AS born FROM person

-- [median age at the end of 2025 by sex]
SELECT gender_concept_id, MEDIAN(2025 - year_of_birth) AS age FROM person GROUP BY gender_concept_id

-- [mean and spread of age]
SELECT AVG(2025 - year_of_birth) AS mean, STDDEV(2025 - year_of_birth) AS sd FROM person

-- [age groups]
SELECT CASE WHEN 2025 - year_of_birth < 18 THEN '0-17' WHEN 2025 - year_of_birth < 45 THEN '18-44'
            WHEN 2025 - year_of_birth < 65 THEN '45-64' ELSE '65+' END AS age_group, COUNT(*) AS persons
FROM person GROUP BY age_group ORDER BY age_group

-- [persons with a condition]
SELECT COUNT(DISTINCT person_id) AS persons FROM condition_occurrence WHERE condition_concept_id = 201826

-- [persons by condition]
SELECT condition_concept_id, COUNT(DISTINCT person_id) AS persons, COUNT(*) AS records
FROM condition_occurrence GROUP BY condition_concept_id ORDER BY persons DESC

-- [conditions by name]
SELECT c.concept_name, COUNT(DISTINCT co.person_id) AS persons
FROM condition_occurrence co JOIN concept c ON co.condition_concept_id = c.concept_id
GROUP BY c.concept_name ORDER BY persons DESC

-- [persons with any descendant of a concept]
SELECT COUNT(DISTINCT person_id) AS persons FROM condition_occurrence
WHERE condition_concept_id IN (SELECT descendant_concept_id FROM concept_ancestor WHERE ancestor_concept_id = 201820)

-- [persons with any descendant, joined to the ancestors] refused: join-multiplies
-- A record could meet several ancestors: IN (SELECT descendant_concept_id ...) is answered.
SELECT COUNT(DISTINCT co.person_id) AS persons
FROM condition_occurrence co
JOIN concept_ancestor ca ON co.condition_concept_id = ca.descendant_concept_id
WHERE ca.ancestor_concept_id = 201820

-- [first diagnoses by year]
SELECT year(first_date) AS year, COUNT(*) AS persons
FROM (SELECT person_id, MIN(condition_start_date) AS first_date FROM condition_occurrence
      WHERE condition_concept_id = 201826 GROUP BY person_id) AS firsts
GROUP BY year ORDER BY year

-- [first diagnoses by year and age group]
WITH firsts AS (SELECT person_id, MIN(condition_start_date) AS first_date FROM condition_occurrence
                WHERE condition_concept_id = 201826 GROUP BY person_id)
SELECT year(f.first_date) AS year, (year(f.first_date) - p.year_of_birth) // 20 AS twenty, COUNT(*) AS persons
FROM firsts f JOIN person p ON p.person_id = f.person_id
GROUP BY ALL ORDER BY ALL

-- [median age at the first diagnosis by sex]
SELECT p.gender_concept_id, MEDIAN(year(f.first_date) - p.year_of_birth) AS age
FROM person p
JOIN (SELECT person_id, MIN(condition_start_date) AS first_date FROM condition_occurrence
      WHERE condition_concept_id = 201826 GROUP BY person_id) f ON f.person_id = p.person_id
GROUP BY p.gender_concept_id

-- [visits per person]
SELECT AVG(n) AS visits FROM (SELECT person_id, COUNT(*) AS n FROM visit_occurrence GROUP BY person_id)

-- [visits per person, of all persons]
SELECT AVG(coalesce(v.n, 0)) AS visits
FROM person p LEFT JOIN (SELECT person_id, COUNT(*) AS n FROM visit_occurrence GROUP BY person_id) v
  ON v.person_id = p.person_id

-- [how many persons have how many visits]
SELECT n AS visits, COUNT(*) AS persons
FROM (SELECT person_id, COUNT(*) AS n FROM visit_occurrence GROUP BY person_id) GROUP BY n ORDER BY n

-- [visits by kind and year]
SELECT c.concept_name AS kind, year(v.visit_start_date) AS year, COUNT(*) AS visits
FROM visit_occurrence v JOIN concept c ON v.visit_concept_id = c.concept_id GROUP BY ALL ORDER BY ALL

-- [mean stay in days]
SELECT AVG(LEAST(date_diff('day', visit_start_date, visit_end_date), 60)) AS days
FROM visit_occurrence WHERE visit_concept_id = 9201 AND visit_end_date >= visit_start_date

-- [median stay by month]
SELECT month(visit_start_date) AS month, MEDIAN(LEAST(GREATEST(visit_end_date - visit_start_date, 0), 60)) AS days
FROM visit_occurrence WHERE visit_concept_id = 9201 GROUP BY month ORDER BY month

-- [persons without any visit]
SELECT COUNT(*) AS persons FROM person p
WHERE NOT EXISTS (SELECT 1 FROM visit_occurrence v WHERE v.person_id = p.person_id)

-- [persons without any visit, by LEFT JOIN]
SELECT COUNT(*) AS persons
FROM person p LEFT JOIN (SELECT person_id, COUNT(*) AS n FROM visit_occurrence GROUP BY person_id) v
  ON v.person_id = p.person_id
WHERE v.n IS NULL

-- [persons with a condition, by sex and decade]
SELECT gender_concept_id, year_of_birth // 10 * 10 AS decade, COUNT(*) AS persons
FROM person
WHERE person_id IN (SELECT person_id FROM condition_occurrence WHERE condition_concept_id = 316866)
GROUP BY ALL

-- [prevalence by sex and decade]
SELECT gender_concept_id, year_of_birth // 10 * 10 AS decade,
       SUM(CASE WHEN c.person_id IS NOT NULL THEN 1 ELSE 0 END) / COUNT(*) AS prevalence
FROM person p
LEFT JOIN (SELECT person_id FROM condition_occurrence WHERE condition_concept_id = 201826 GROUP BY person_id) c
  ON c.person_id = p.person_id
GROUP BY ALL ORDER BY ALL

-- [prevalence by a DISTINCT subquery]
SELECT p.gender_concept_id, COUNT(c.person_id) / COUNT(*) AS prevalence
FROM person p
LEFT JOIN (SELECT DISTINCT person_id FROM condition_occurrence WHERE condition_concept_id = 201826) c
  ON c.person_id = p.person_id
GROUP BY p.gender_concept_id

-- [a visit within 30 days of the first diagnosis]
WITH firsts AS (SELECT person_id, MIN(condition_start_date) AS first_date FROM condition_occurrence
                WHERE condition_concept_id = 201826 GROUP BY person_id)
SELECT COUNT(DISTINCT v.person_id) AS persons
FROM visit_occurrence v JOIN firsts f ON f.person_id = v.person_id
WHERE v.visit_start_date > f.first_date AND v.visit_start_date <= f.first_date + INTERVAL 30 DAY

-- [a visit within 30 days, with the difference of dates]
SELECT COUNT(DISTINCT v.person_id) AS persons
FROM visit_occurrence v
JOIN (SELECT person_id, MIN(condition_start_date) AS first_date FROM condition_occurrence GROUP BY person_id) f
  ON f.person_id = v.person_id
WHERE date_diff('day', f.first_date, v.visit_start_date) BETWEEN 1 AND 30

-- [a drug after the first diagnosis]
WITH firsts AS (SELECT person_id, MIN(condition_start_date) AS first_date FROM condition_occurrence
                WHERE condition_concept_id = 201826 GROUP BY person_id)
SELECT COUNT(DISTINCT d.person_id) AS persons
FROM drug_exposure d JOIN firsts f ON f.person_id = d.person_id
WHERE d.drug_concept_id = 1503297 AND d.drug_exposure_start_date >= f.first_date

-- [days from the first diagnosis to the first drug]
WITH firsts AS (SELECT person_id, MIN(condition_start_date) AS diagnosed FROM condition_occurrence
                WHERE condition_concept_id = 201826 GROUP BY person_id),
treated AS (SELECT person_id, MIN(drug_exposure_start_date) AS started FROM drug_exposure
            WHERE drug_concept_id = 1503297 GROUP BY person_id)
SELECT MEDIAN(LEAST(date_diff('day', diagnosed, started), 365)) AS days, COUNT(*) AS persons
FROM firsts JOIN treated ON treated.person_id = firsts.person_id WHERE started >= diagnosed

-- [diagnosed and never treated]
SELECT COUNT(*) AS persons FROM person p
WHERE EXISTS (SELECT 1 FROM condition_occurrence c
              WHERE c.person_id = p.person_id AND c.condition_concept_id = 201826)
  AND NOT EXISTS (SELECT 1 FROM drug_exposure d WHERE d.person_id = p.person_id AND d.drug_concept_id = 1503297)

-- [two conditions in one person]
SELECT COUNT(*) AS persons
FROM (SELECT person_id FROM condition_occurrence WHERE condition_concept_id IN (201826, 316866)
      GROUP BY person_id HAVING COUNT(DISTINCT condition_concept_id) = 2)

-- [two conditions in one person, by IN]
SELECT COUNT(DISTINCT person_id) AS persons FROM condition_occurrence
WHERE condition_concept_id = 201826
  AND person_id IN (SELECT person_id FROM condition_occurrence WHERE condition_concept_id = 316866)

-- [two conditions, by INTERSECT]
SELECT COUNT(*) AS persons
FROM (SELECT person_id FROM condition_occurrence WHERE condition_concept_id = 201826
      INTERSECT SELECT person_id FROM condition_occurrence WHERE condition_concept_id = 316866)

-- [one condition before another, by a self-join] refused: self-join
-- One person's rows would multiply: join MIN(date) of each instead.
SELECT COUNT(DISTINCT a.person_id) AS persons
FROM condition_occurrence a JOIN condition_occurrence b ON a.person_id = b.person_id
WHERE a.condition_concept_id = 316866 AND b.condition_concept_id = 201826
  AND a.condition_start_date < b.condition_start_date

-- [one condition before another]
WITH d AS (SELECT person_id, MIN(condition_start_date) AS since FROM condition_occurrence
           WHERE condition_concept_id = 201826 GROUP BY person_id),
h AS (SELECT person_id, MIN(condition_start_date) AS since FROM condition_occurrence
      WHERE condition_concept_id = 316866 GROUP BY person_id)
SELECT COUNT(*) FILTER (WHERE h.since < d.since) AS before, COUNT(*) AS both
FROM d JOIN h ON d.person_id = h.person_id

-- [mean number of drugs per person]
SELECT AVG(n) AS drugs FROM (SELECT person_id, COUNT(DISTINCT drug_concept_id) AS n FROM drug_exposure GROUP BY person_id)

-- [mean number of exposures per person by sex]
SELECT p.gender_concept_id, AVG(d.n) AS exposures
FROM person p JOIN (SELECT person_id, COUNT(*) AS n FROM drug_exposure GROUP BY person_id) d
  ON d.person_id = p.person_id
GROUP BY p.gender_concept_id

-- [five drugs or more]
SELECT COUNT(*) AS persons
FROM (SELECT person_id, COUNT(*) AS n FROM drug_exposure WHERE year(drug_exposure_start_date) = 2024
      GROUP BY person_id HAVING n >= 5)

-- [days of supply by drug]
SELECT drug_concept_id, SUM(days_supply) AS days, AVG(days_supply) AS mean FROM drug_exposure GROUP BY drug_concept_id

-- [share of days covered in a year]
SELECT AVG(LEAST(days / 365, 1)) AS covered
FROM (SELECT person_id, SUM(days_supply) AS days FROM drug_exposure
      WHERE drug_concept_id = 1503297 AND year(drug_exposure_start_date) = 2024 GROUP BY person_id)

-- [mean of a measurement by sex]
SELECT p.gender_concept_id, AVG(m.value_as_number) AS mean, STDDEV(m.value_as_number) AS sd
FROM measurement m JOIN person p ON m.person_id = p.person_id
WHERE m.measurement_concept_id = 3004249 GROUP BY p.gender_concept_id

-- [median of a measurement by year]
SELECT year(measurement_date) AS year, MEDIAN(value_as_number) AS median
FROM measurement WHERE measurement_concept_id = 3004410 GROUP BY year ORDER BY year

-- [persons whose highest value passes a threshold]
SELECT COUNT(*) AS persons
FROM (SELECT person_id, MAX(value_as_number) AS highest FROM measurement WHERE measurement_concept_id = 3004249
      GROUP BY person_id) WHERE highest >= 180

-- [the last value of each person]
SELECT AVG(value) AS mean
FROM (SELECT person_id, arg_max(value_as_number, measurement_date) AS value FROM measurement
      WHERE measurement_concept_id = 3004410 GROUP BY person_id)

-- [the first row of each person by ROW_NUMBER]
SELECT year(condition_start_date) AS year, COUNT(*) AS persons
FROM (SELECT person_id, condition_start_date,
             ROW_NUMBER() OVER (PARTITION BY person_id ORDER BY condition_start_date) AS nth
      FROM condition_occurrence WHERE condition_concept_id = 201826)
WHERE nth = 1 GROUP BY year ORDER BY year

-- [deaths by year and sex]
SELECT year(d.death_date) AS year, p.gender_concept_id, COUNT(*) AS deaths
FROM death d JOIN person p ON d.person_id = p.person_id GROUP BY ALL ORDER BY ALL

-- [age at death]
SELECT AVG(year(d.death_date) - p.year_of_birth) AS age
FROM death d JOIN person p ON p.person_id = d.person_id

-- [death within a year of the first diagnosis]
SELECT COUNT(*) AS persons
FROM death d JOIN (SELECT person_id, MIN(condition_start_date) AS first_date FROM condition_occurrence
                   WHERE condition_concept_id = 255573 GROUP BY person_id) f ON f.person_id = d.person_id
WHERE d.death_date <= f.first_date + INTERVAL '1 year'

-- [persons observed through 2024]
SELECT COUNT(DISTINCT person_id) AS persons FROM observation_period
WHERE observation_period_start_date <= DATE '2024-01-01' AND observation_period_end_date >= DATE '2024-12-31'

-- [years of observation]
SELECT SUM(observation_period_end_date - observation_period_start_date) / 365.25 AS years FROM observation_period

-- [incidence in a thousand years of observation]
SELECT 1000 * (SELECT COUNT(*) FROM (SELECT person_id, MIN(condition_start_date) AS first_date
                                     FROM condition_occurrence WHERE condition_concept_id = 201826 GROUP BY person_id)
               WHERE year(first_date) = 2024)
       / (SELECT SUM(observation_period_end_date - observation_period_start_date) / 365.25 FROM observation_period)
       AS incidence

-- [a year of observation before the first diagnosis]
SELECT COUNT(DISTINCT o.person_id) AS persons
FROM observation_period o
JOIN (SELECT person_id, MIN(condition_start_date) AS first_date FROM condition_occurrence
      WHERE condition_concept_id = 201826 GROUP BY person_id) f ON f.person_id = o.person_id
WHERE f.first_date BETWEEN o.observation_period_start_date + INTERVAL 365 DAY AND o.observation_period_end_date

-- [conditions of inpatient visits]
SELECT co.condition_concept_id, COUNT(*) AS records
FROM condition_occurrence co JOIN visit_occurrence v ON co.visit_occurrence_id = v.visit_occurrence_id
WHERE v.visit_concept_id = 9201 GROUP BY co.condition_concept_id

-- [readmission within 30 days by LAG]
SELECT COUNT(*) AS readmissions
FROM (SELECT person_id, visit_start_date,
             LAG(visit_end_date) OVER (PARTITION BY person_id ORDER BY visit_start_date) AS before
      FROM visit_occurrence WHERE visit_concept_id = 9201)
WHERE date_diff('day', before, visit_start_date) <= 30

-- [persons in care in each of two years]
SELECT COUNT(*) AS persons
FROM (SELECT person_id, BOOL_OR(year(visit_start_date) = 2023) AS earlier, BOOL_OR(year(visit_start_date) = 2024) AS later
      FROM visit_occurrence GROUP BY person_id)
WHERE earlier AND later

-- [the most frequent condition of each sex]
SELECT gender_concept_id, condition_concept_id, n FROM (
    SELECT p.gender_concept_id, c.condition_concept_id, COUNT(DISTINCT c.person_id) AS n,
           ROW_NUMBER() OVER (PARTITION BY p.gender_concept_id ORDER BY COUNT(DISTINCT c.person_id) DESC) AS place
    FROM condition_occurrence c JOIN person p ON p.person_id = c.person_id GROUP BY ALL)
WHERE place <= 3

-- [the list of a cohort] refused: raw-value
-- A list of persons is what the noise is to hide.
SELECT person_id FROM condition_occurrence WHERE condition_concept_id = 201826
