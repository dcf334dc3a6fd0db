"""`caw evaluate report`: the tables and figures of a run."""
