"""A cluster of network namespaces on one machine, in which collectives are timed side by side.

How the modules work together: a `scenario` defines the measurement; `data` makes every rank's input and `oracle` the
answer; `cluster` makes hosts with rate-limited links; `run` goes through the placements; `conductor` starts one process
per host (`rank`) and sends all of them the next command; `contenders` are the compared collectives; `link` and `floor`
compute the limits of the link; `summary`, `table`, `plot` and `record` report the results.
"""
