"""A cluster of network namespaces on one machine, in which collectives are timed side by side.

The way through: a `scenario` says what to measure; `data` makes every rank's input and `oracle` the answer;
`cluster` makes hosts with rate-limited links; `run` goes through the placements; `conductor` starts one process a
host (`rank`) and tells all of them what to run next; `contenders` holds what competes; `link` and `floor` say what
the wire allows; `summary`, `table`, `plot` and `record` say what came out.
"""
