"""Why a program is sharded as it is: provenance, rules of operators, summaries, readable modules.

Rules that users state for operators of their own are here, too.
"""
