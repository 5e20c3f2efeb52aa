"""Run records of trainings, and the report made of them.

`reports.records` writes and reads run files and needs nothing but Python, since training processes
import it; `python -m reports` turns run files into one page, tables and figures.
"""
