"""From a graph to something that runs: layout, kernel choice, memory plan, program."""
