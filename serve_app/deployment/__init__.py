"""Serve deployments, the start on a cluster and on one machine, the proxy, the doctor."""
