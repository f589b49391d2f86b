CREATE TABLE customers (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    street TEXT,
    city TEXT
);
INSERT INTO customers VALUES
    (1, 'Ada', '1 Mill Road', 'Bath'),
    (2, 'Bo', NULL, NULL),
    (3, 'Cyn', '', 'Ely'),
    (4, 'Dev', '', '');
