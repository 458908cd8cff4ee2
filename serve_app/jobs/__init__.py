"""Jobs: routes, schemas, services, results."""
