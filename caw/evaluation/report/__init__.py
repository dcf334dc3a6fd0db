"""`caw evaluate report`: what a run found, as tables and figures."""
