"""HTTP: the addresses of `/v1`, and those of the founding document."""
