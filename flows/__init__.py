"""The pipeline as a Prefect flow, its deployments, and the command line."""
