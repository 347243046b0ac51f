"""Schedules jobs on a cluster that is not there, in virtual time, by the policies that the scheduler has. Pure."""
