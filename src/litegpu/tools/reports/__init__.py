"""HTML reports: one page per tool run, in a single file.

A page is a list of sections (`sections.py`); tools create them from their results (`delegation.py`,
`timing.py`, `accuracy.py`), `page.py` renders them.
"""
