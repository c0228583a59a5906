"""One benchmark for each module: `run(rounds)` returns ratios, figures and the machine."""
