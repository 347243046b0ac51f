"""The store: small records with compare-and-set, and large values in chunks; over Redis, or within one process."""
