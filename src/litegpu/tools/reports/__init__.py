"""HTML reports: each run of a tool writes one self-contained page.

A page is a list of sections (`sections.py`). Tools create sections from their results
(`delegation.py`, `timing.py`, `accuracy.py`), and `page.py` renders the sections.
"""
