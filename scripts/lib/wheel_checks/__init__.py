"""What scripts/wheel-check asks of a wheel; each module is one step.

A step raises one lib.console.Failure that lists everything it found wrong.
"""
