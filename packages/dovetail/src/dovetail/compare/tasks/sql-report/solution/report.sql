SELECT
    d.name,
    (SELECT count(*) FROM employees e WHERE e.department_id = d.id),
    (SELECT max(salary) FROM employees e WHERE e.department_id = d.id),
    (
        SELECT e.name FROM employees e WHERE e.department_id = d.id
        ORDER BY e.salary DESC, e.name LIMIT 1
    )
FROM departments d
ORDER BY d.name;
