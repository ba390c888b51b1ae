-- The tables of OMOP's common data model that omop.sql asks, with the columns that it asks for.
CREATE TABLE person (person_id BIGINT, gender_concept_id INTEGER, year_of_birth INTEGER, month_of_birth INTEGER,
                     birth_datetime TIMESTAMP, race_concept_id INTEGER, ethnicity_concept_id INTEGER);
CREATE TABLE observation_period (observation_period_id BIGINT, person_id BIGINT, observation_period_start_date DATE,
                                 observation_period_end_date DATE);
CREATE TABLE visit_occurrence (visit_occurrence_id BIGINT, person_id BIGINT, visit_concept_id INTEGER,
                               visit_start_date DATE, visit_end_date DATE);
CREATE TABLE condition_occurrence (condition_occurrence_id BIGINT, person_id BIGINT, condition_concept_id INTEGER,
                                   condition_start_date DATE, condition_end_date DATE, visit_occurrence_id BIGINT);
CREATE TABLE drug_exposure (drug_exposure_id BIGINT, person_id BIGINT, drug_concept_id INTEGER,
                            drug_exposure_start_date DATE, drug_exposure_end_date DATE, days_supply INTEGER,
                            quantity DOUBLE, visit_occurrence_id BIGINT);
CREATE TABLE measurement (measurement_id BIGINT, person_id BIGINT, measurement_concept_id INTEGER,
                          measurement_date DATE, value_as_number DOUBLE, unit_concept_id INTEGER);
CREATE TABLE death (person_id BIGINT, death_date DATE, cause_concept_id INTEGER);
CREATE TABLE concept (concept_id INTEGER, concept_name VARCHAR, domain_id VARCHAR, vocabulary_id VARCHAR);
CREATE TABLE concept_ancestor (ancestor_concept_id INTEGER, descendant_concept_id INTEGER,
                               min_levels_of_separation INTEGER);
