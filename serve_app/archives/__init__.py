"""Archive intake: buckets of clients, analysed object by object."""
