"""What the edge tells of itself: per request, per second, and after the fact.

Reading order: timing (moments of a request), log, metrics with compat (the names that others use),
telemetry (OpenTelemetry), trace (what the loop tells), stories (what became of each request),
narrate (in words). It decides nothing, and no request waits for it. This file stays empty.
"""
