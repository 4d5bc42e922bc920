"""The command-line tools; `cli` dispatches to one module per tool."""
