"""A whole elps on one machine: a private broker and store, the services as processes, and how commands find them."""
