"""Ways of training the same classifier, to be compared with each other by `compare.py`.

From the bottom up: `task` (what is to be trained), `datasets`, `ranks` (the processes of a run),
`plan` and `training` (the loop that all neural methods share), one module a method, `methods` (the
list of them), `worker` (one process of a run), `jobs` (starts it and keeps its record), `command`
and `compare` (the program).
"""
