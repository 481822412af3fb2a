"""What keeps a bad minute of an engine from becoming one of its clients.

Reading order: watchdog (whether the loop turns and makes steps) with core_waits (what a busy
machine excuses), gpu and nvml (temperature and utilisation), engine_watch (all of it for one
engine, in the supervisor), standing (what an edge knows of it), breaker (what is refused before
all wait too long) with anteroom (a crowd that waits), upstream, chat_form and message_form (another
server, its API, and what frames have no place for) with circuit (whether what failed is asked
again), orphans (what a run that was killed has left).
"""
