"""Reports for people: one page of HTML with everything that a tool found, in one file.

A page is a list of sections (`sections.py`); tools make them of their results (`delegation.py`,
`timing.py`, `accuracy.py`), `page.py` renders them.
"""
