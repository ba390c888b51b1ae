-- The tables behind dashboards.sql: a shop's orders, rides of a taxi service, and requests to a web service.
CREATE TABLE customers (id INTEGER, segment VARCHAR, country VARCHAR, born DATE, signed_up DATE, email VARCHAR);
CREATE TABLE orders (id INTEGER, customer_id INTEGER, product_id INTEGER, created_at TIMESTAMP, status VARCHAR,
                     channel VARCHAR, quantity INTEGER, total DECIMAL(10, 2), discount DECIMAL(4, 2), note VARCHAR);
CREATE TABLE products (id INTEGER, category VARCHAR, name VARCHAR, price DECIMAL(8, 2));
CREATE TABLE trips (id INTEGER, rider_id INTEGER, zone INTEGER, picked TIMESTAMP, dropped TIMESTAMP,
                    passengers INTEGER, dist DOUBLE, fare DECIMAL(8, 2), tip DECIMAL(8, 2), payment VARCHAR);
CREATE TABLE zones (id INTEGER, borough VARCHAR, name VARCHAR);
CREATE TABLE requests (user_id BIGINT, ts TIMESTAMP, service VARCHAR, status INTEGER, latency_ms INTEGER,
                       bytes BIGINT, path VARCHAR);
