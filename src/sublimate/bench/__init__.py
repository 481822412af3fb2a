"""Load tests: `sublimate bench URL`, `--compare URL`, `--engine`.

Reading order: http (one streamed request, timed), apis (bodies and events of the two API styles),
prompts, figures, load (one round against one server), served (rounds, comparison), native
(the in-process loop), report (tables and JSON rows). machine: what the machine gives at most.
"""
