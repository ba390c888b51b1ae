-- Five questions about students by year of graduation and gender. The fourth follows from the second
-- and the third, and the answers say so: they are consistent.

-- All students.
CREATE VIEW all_students AS
SELECT COUNT(*) AS n FROM students;

-- Those who graduate in 2011 or 2012.
CREATE VIEW early AS
SELECT COUNT(*) AS n FROM students WHERE gradyear BETWEEN 2011 AND 2012;

-- The women among them.
CREATE VIEW early_women AS
SELECT COUNT(*) AS n FROM students WHERE gradyear IN (2011, 2012) AND gender = 'F';

-- The men among them.
CREATE VIEW early_men AS
SELECT COUNT(*) AS n FROM students WHERE gradyear IN (2011, 2012) AND gender = 'M';

-- By how many the class of 2013 is larger than the class of 2014.
CREATE VIEW class_of_2013_minus_2014 AS
SELECT COUNT_IF(gradyear = 2013) - COUNT_IF(gradyear = 2014) AS n FROM students;
