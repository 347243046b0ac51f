"""`elps doctor`: is everything around the services as they need it, and what is to be done where it is not."""
