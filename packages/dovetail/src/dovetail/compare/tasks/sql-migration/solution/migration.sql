CREATE TABLE addresses (
    id INTEGER PRIMARY KEY,
    customer_id INTEGER NOT NULL REFERENCES customers (id),
    street TEXT,
    city TEXT
);
INSERT INTO addresses (customer_id, street, city)
    SELECT id, nullif(street, ''), nullif(city, '') FROM customers
    WHERE coalesce(street, '') <> '' OR coalesce(city, '') <> '';
ALTER TABLE customers DROP COLUMN street;
ALTER TABLE customers DROP COLUMN city;
